"""Committed offsets of groups, as someone sees them who asks again and again."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from confluent_kafka import Consumer, KafkaException, TopicPartition

from tests.faults.clients import SILENT

POLL_S = 0.5
ASK_S = 10.0


class OffsetWatcher:
    """Asks for the committed offsets of groups in one topic, in a thread of its own.

    Attributes:
        answers: How often it was answered.
        errors: What nobody may see: an offset that went back.
    """

    def __init__(self, bootstrap_servers: str, groups: Sequence[str], topic: str, partitions: int) -> None:
        self.answers = 0
        self.errors: list[str] = []
        self._partitions = [TopicPartition(topic, each) for each in range(partitions)]
        self._last: dict[tuple[str, int], int] = {}
        # They never join. An admin client would do, but librdkafka 2.16 crashed in list_consumer_group_offsets when the
        # coordinator was killed.
        self._consumers = {
            group: Consumer({"bootstrap.servers": bootstrap_servers, "group.id": group, "log_level": SILENT})
            for group in groups
        }
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="offset-watcher")

    def start(self) -> None:
        self._thread.start()

    def finish(self) -> None:
        self._ending.set()
        self._thread.join()
        for consumer in self._consumers.values():
            consumer.close()

    def _run(self) -> None:
        while not self._ending.wait(POLL_S):
            for group, consumer in self._consumers.items():
                try:
                    found = consumer.committed(self._partitions, ASK_S)
                except KafkaException:
                    continue
                self.answers += 1
                for each in found:
                    if each.error is None and each.offset >= 0:
                        self.note(group, each.partition, each.offset)

    def note(self, group: str, partition: int, offset: int) -> None:
        """Take in one offset that was answered."""
        last = self._last.get((group, partition), -1)
        if offset < last:
            self.errors.append(f"{group}: the committed offset of partition {partition} went from {last} to {offset}")
        self._last[group, partition] = offset
