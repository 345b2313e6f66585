"""Applications whose longest wait is measured while a broker is away: a producer, a group's member, transactions.

Each is a thread that does one small thing again and again, and notes when it succeeded. Clients have the defaults of
librdkafka, but for what is named here.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from tests.bench.processes import Failed

PERIOD_S = 0.02
COMMIT_PERIOD_S = 0.05
LIMIT_S = 120.0
VALUE = b"v" * 200
#: Of librdkafka's log: that brokers are away is what is measured.
SILENT = 0


class Successes:
    """When something succeeded last, by key, and the longest wait for it since `begin`."""

    def __init__(self, name: str, keys: Sequence[int] = (0,)) -> None:
        self.name = name
        self._lock = threading.Lock()
        now_s = time.monotonic()
        self._last_s = dict.fromkeys(keys, now_s)
        self._longest_s = dict.fromkeys(keys, 0.0)

    def note(self, key: int = 0) -> None:
        """It succeeded now."""
        with self._lock:
            now_s = time.monotonic()
            self._longest_s[key] = max(self._longest_s[key], now_s - self._last_s[key])
            self._last_s[key] = now_s

    def begin(self) -> None:
        """Count from here; a wait that has begun counts from its beginning."""
        with self._lock:
            self._longest_s = dict.fromkeys(self._longest_s, 0.0)

    def longest_s(self) -> dict[int, float]:
        """The longest wait since `begin` by key, also of a wait that goes on."""
        with self._lock:
            now_s = time.monotonic()
            return {key: max(found, now_s - self._last_s[key]) for key, found in self._longest_s.items()}

    def are_recent(self, within_s: float) -> bool:
        """Whether every key has succeeded lately."""
        with self._lock:
            return time.monotonic() - min(self._last_s.values()) <= within_s


class Probe:
    """A thread that works until `stop`; an error that ends it is raised there."""

    def __init__(self, successes: Successes) -> None:
        self.successes = successes
        self._stopping = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._work, name=successes.name)

    def start(self) -> None:
        """Begin; returns when it has succeeded with every key."""
        self.successes.begin()
        self._thread.start()
        deadline_s = time.monotonic() + LIMIT_S
        while not self.successes.are_recent(2 * COMMIT_PERIOD_S):
            if time.monotonic() > deadline_s or not self._thread.is_alive():
                raise Failed(f"{self.successes.name} does not get going: {self._failure}")
            time.sleep(PERIOD_S)

    def stop(self) -> None:
        """End; raises Failed if it had ended before."""
        self._stopping.set()
        self._thread.join(LIMIT_S)
        if self._failure is not None or self._thread.is_alive():
            raise Failed(f"{self.successes.name} failed: {self._failure or 'it does not end'}")

    def _work(self) -> None:
        try:
            self.run()
        except (KafkaException, Failed) as failure:
            self._failure = failure

    def run(self) -> None:
        """Work until `_stopping` is set."""
        raise NotImplementedError


class IdempotentProducer(Probe):
    """One message to each partition in each period, acks=all."""

    def __init__(self, bootstrap: str, topic: str, partitions: int) -> None:
        super().__init__(Successes("the producer", range(partitions)))
        self._topic, self._partitions = topic, partitions
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "log_level": SILENT,
                "acks": "all",
                "enable.idempotence": True,
                "linger.ms": 0,
            }
        )

    def run(self) -> None:
        """Send, and take acknowledgements."""
        refused: list[str] = []

        def delivered(partition: int) -> Any:
            def note(error: object, _: object) -> None:
                if error is None:
                    self.successes.note(partition)
                else:
                    refused.append(str(error))

            return note

        callbacks = [delivered(partition) for partition in range(self._partitions)]
        while not self._stopping.is_set() and not refused:
            for partition, callback in enumerate(callbacks):
                self._producer.produce(self._topic, VALUE, partition=partition, on_delivery=callback)
            end_s = time.monotonic() + PERIOD_S
            while (left_s := end_s - time.monotonic()) > 0:
                self._producer.poll(left_s)
        left = self._producer.flush(LIMIT_S)
        if left or refused:
            raise Failed(f"{left} messages are not acknowledged; refused: {refused[:1]}")


class GroupMember(Probe):
    """A member of a group that commits again and again, each time waiting for the answer."""

    def __init__(self, bootstrap: str, topic: str, group: str) -> None:
        super().__init__(Successes("the group"))
        self._topic = topic
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "log_level": SILENT,
                "group.id": group,
                "enable.auto.commit": False,
                "auto.offset.reset": "latest",
            }
        )

    def run(self) -> None:
        """Poll and commit; a commit that fails is tried again with the next offset."""
        self._consumer.subscribe([self._topic])
        number = 0
        try:
            while not self._stopping.is_set():
                self._consumer.poll(PERIOD_S)
                if not self._consumer.assignment():
                    continue
                number += 1
                try:
                    self._consumer.commit(offsets=[TopicPartition(self._topic, 0, number)], asynchronous=False)
                except KafkaException:
                    continue
                self.successes.note()
                self._stopping.wait(COMMIT_PERIOD_S)
        finally:
            self._consumer.close()


class Transactions(Probe):
    """Transactions of one message, one after the other."""

    def __init__(self, bootstrap: str, topic: str, transactional_id: str) -> None:
        super().__init__(Successes("the transactions"))
        self._topic = topic
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "log_level": SILENT,
                "transactional.id": transactional_id,
                "linger.ms": 0,
                "metadata.recovery.strategy": "none",  # librdkafka's issue 5511
            }
        )

    def run(self) -> None:
        """Begin, send, commit; what the client asks to do again is done again."""
        self._producer.init_transactions(LIMIT_S)
        while not self._stopping.is_set():
            self._producer.begin_transaction()
            self._producer.produce(self._topic, VALUE)
            if self._commit():
                self.successes.note()
            self._stopping.wait(COMMIT_PERIOD_S)

    def _commit(self) -> bool:
        while True:
            try:
                self._producer.commit_transaction(LIMIT_S)
                return True
            except KafkaException as failure:
                error = failure.args[0]
                if error.txn_requires_abort():
                    self._producer.abort_transaction(LIMIT_S)
                    return False
                if not error.retriable():
                    raise


@contextmanager
def running(probes: Sequence[Probe]) -> Iterator[None]:
    """All of them, from their first success to the end of the block."""
    with ExitStack() as ending:
        for probe in probes:
            ending.callback(probe.stop)
            probe.start()
        yield


def await_recovery(probes: Sequence[Probe], least_s: float, within_s: float) -> None:
    """Return when each probe has lately succeeded with every key.

    Args:
        least_s: Not before that many seconds from now.
        within_s: What counts as lately.
    """
    time.sleep(least_s)
    deadline_s = time.monotonic() + LIMIT_S
    while not all(probe.successes.are_recent(within_s) for probe in probes):
        if time.monotonic() > deadline_s:
            waiting = [probe.successes.name for probe in probes if not probe.successes.are_recent(within_s)]
            raise Failed(f"{', '.join(waiting)} did not succeed again within {LIMIT_S:.0f} s")
        time.sleep(PERIOD_S)
