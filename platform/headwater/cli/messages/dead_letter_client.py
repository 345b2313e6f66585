"""The broker operations of `headwater dead-letters`: read committed dead letters, write records in transactions."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from headwater.cli.shell.errors import EXIT_FAILED, CliError
from headwater.cli.shell.options import client_security, settings

if TYPE_CHECKING:
    from headwater.pipelines.dead_letters.records import DeadLetter, Replayed, Written

BATCH_DEAD_LETTERS: Final = 500
"""Dead letters fetched from the client in one call."""

SILENCE_S_MAX: Final = 60.0
"""Timeout without records before the known end of a topic: the broker has a problem."""

_POLL_S: Final = 0.25


@contextmanager
def dead_letter_client(verb: str, bootstrap_servers: str | None) -> Iterator[DeadLetterClient]:
    """Provide a client whose failures become lines for the user."""
    from confluent_kafka import KafkaException

    from headwater.cli.shell.administration import reachable_servers

    client = DeadLetterClient(verb, reachable_servers(verb, bootstrap_servers))
    try:
        yield client
    except KafkaException as error:
        reason = error.args[0].str().removeprefix("Broker: ").removeprefix("Local: ")
        raise CliError(verb, reason, exit_code=EXIT_FAILED) from None
    finally:
        client.close()


class DeadLetterClient:
    """Reads committed dead letters, and writes records back in transactions."""

    def __init__(self, verb: str, brokers: str) -> None:
        from headwater.api.connection import Outage, client_properties

        self._verb = verb
        self._outage = Outage()
        timeout_ms = settings().request_timeout_ms
        self._timeout_s = timeout_ms / 1000
        self._properties = client_properties(brokers, timeout_ms, client_security()) | {"error_cb": self._outage}
        self._consumers: dict[str, Any] = {}
        self._producers: dict[str, Any] = {}
        self._counts: dict[str, int] = {}

    def close(self) -> None:
        """Close the connections."""
        for consumer in self._consumers.values():
            consumer.close()

    def _consumer(self, group: str) -> Any:
        from confluent_kafka import Consumer

        if group not in self._consumers:
            self._consumers[group] = Consumer(
                self._properties
                | {
                    "group.id": group,
                    "enable.auto.commit": False,
                    "isolation.level": "read_committed",
                    "enable.partition.eof": True,
                    "auto.offset.reset": "earliest",
                }
            )
        return self._consumers[group]

    def topics(self) -> set[str]:
        """Return the names of all topics."""
        return set(self._consumer("headwater-dead-letters").list_topics(timeout=self._timeout_s).topics)

    def partitions(self, topic: str) -> int:
        """Return the number of partitions of a topic. Raises CliError if the topic does not exist."""
        if topic not in self._counts:
            found = self._consumer("headwater-dead-letters").list_topics(topic, timeout=self._timeout_s).topics[topic]
            if found.error is not None or not found.partitions:
                raise CliError(
                    self._verb, f"there is no topic {topic!r} to write to", "create it, or name another by --to"
                )
            self._counts[topic] = len(found.partitions)
        return self._counts[topic]

    def remembered(self, topic: str, group: str) -> dict[int, Replayed]:
        """Return the replayed dead letters of each partition."""
        from confluent_kafka import TopicPartition

        from headwater.pipelines.dead_letters.records import Replayed

        asked = [TopicPartition(topic, partition) for partition in range(self.partitions(topic))]
        found = self._consumer(group).committed(asked, timeout=self._timeout_s)
        return {each.partition: Replayed.decode(max(each.offset, 0), each.metadata) for each in found}

    def dead_letters(
        self, topic: str, since_ms: int | None, remembered: dict[int, Replayed] | None = None
    ) -> Iterator[DeadLetter]:
        """Yield the dead letters of a topic up to its current end, in order within each partition."""
        from confluent_kafka import TopicPartition

        from headwater.pipelines.dead_letters.records import DeadLetter

        consumer = self._consumer("headwater-dead-letters")
        starts = []
        left = set()
        for partition in range(self.partitions(topic)):
            low, high = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=self._timeout_s)
            start = max(low, remembered[partition].offset) if remembered is not None else low
            if since_ms is not None:
                [at] = consumer.offsets_for_times([TopicPartition(topic, partition, since_ms)], timeout=self._timeout_s)
                start = high if at.offset < 0 else max(start, at.offset)
            if start < high:
                starts.append(TopicPartition(topic, partition, start))
                left.add(partition)
        consumer.assign(starts)
        heard_s = time.monotonic()
        while left:
            messages: Sequence[Any] = consumer.consume(BATCH_DEAD_LETTERS, _POLL_S)
            if self._outage.refusal is not None:
                raise CliError(self._verb, self._outage.refusal, exit_code=EXIT_FAILED)
            if not messages and time.monotonic() - heard_s > SILENCE_S_MAX:
                raise CliError(self._verb, f"{topic} gives no records", "see the broker's log", exit_code=EXIT_FAILED)
            for message in messages:
                heard_s = time.monotonic()
                error = message.error()
                if error is None:
                    yield _dead_letter(DeadLetter, message)
                elif error.name() == "_PARTITION_EOF":
                    left.discard(message.partition())
                else:
                    raise CliError(self._verb, error.str(), exit_code=EXIT_FAILED)
        consumer.unassign()

    def write(self, records: Sequence[Written], topic: str, group: str, offsets: dict[int, tuple[int, str]]) -> None:
        """Write records and commit the offsets of their dead letters, all or none."""
        from confluent_kafka import KafkaException, Producer, TopicPartition

        if group not in self._producers:
            # Two replays of one topic at a time: the later one fences the earlier.
            producer = Producer(self._properties | {"transactional.id": group, "partitioner": "murmur2_random"})
            producer.init_transactions(self._timeout_s)
            self._producers[group] = producer
        producer = self._producers[group]
        producer.begin_transaction()
        try:
            for record in records:
                placed = {} if record.partition is None else {"partition": record.partition}
                producer.produce(
                    record.topic, key=record.key, value=record.value, headers=list(record.headers), **placed
                )
            done = [TopicPartition(topic, p, offset, metadata) for p, (offset, metadata) in offsets.items()]
            metadata = self._consumer(group).consumer_group_metadata()
            producer.send_offsets_to_transaction(done, metadata, self._timeout_s)
            producer.commit_transaction(self._timeout_s)
        except KafkaException:
            producer.abort_transaction(self._timeout_s)
            raise


def _dead_letter(kind: type[DeadLetter], message: Any) -> DeadLetter:
    _, timestamp_ms = message.timestamp()
    headers = tuple((str(name), value) for name, value in message.headers() or ())
    return kind(
        message.topic(), message.partition(), message.offset(), timestamp_ms, message.key(), message.value(), headers
    )
