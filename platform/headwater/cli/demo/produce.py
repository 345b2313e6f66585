"""Produces the demo's records with librdkafka, as an ordinary client."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

REPORT_EVERY = 50_000  # records between two calls of `on_progress`
FLUSH_SECONDS_MAX = 60.0
WAIT_SECONDS = 0.2  # how soon Ctrl-C is heeded while librdkafka works


class ProduceFailed(Exception):  # noqa: N818 - it says what happened
    """Records were not acknowledged; the message reports their number and the reason."""


def produce(
    bootstrap_servers: str,
    topic: str,
    records: Iterable[tuple[bytes | None, bytes]],
    on_progress: Callable[[int], None],
    security: Mapping[str, str] | None = None,
) -> int:
    """Produce records in order, idempotently; returns the number of acknowledged records. Raises ProduceFailed.

    The partitioner is the Java client's: murmur2 of the key, and any partition for records without a key.
    """
    from confluent_kafka import KafkaException, Producer

    failures: list[str] = []
    acknowledged = 0

    def delivered(error: Any, message: Any) -> None:  # noqa: ARG001 - librdkafka's signature
        nonlocal acknowledged
        if error is None:
            acknowledged += 1
        else:
            failures.append(str(error))

    producer = Producer(
        {
            **(security or {}),
            "bootstrap.servers": bootstrap_servers,
            "enable.idempotence": True,
            "partitioner": "murmur2_random",
            "linger.ms": 20,
            "batch.size": 256 * 1024,
            "compression.type": "lz4",
            "queue.buffering.max.messages": 200_000,
            "message.timeout.ms": 60_000,
            "log_level": 2,
        }
    )
    sent = 0
    try:
        with _interrupts_between_calls() as check:
            for key, value in records:
                while True:
                    try:
                        producer.produce(topic, value=value, key=key, on_delivery=delivered)
                        break
                    except BufferError:
                        check()
                        producer.poll(WAIT_SECONDS)
                sent += 1
                if sent % 1_000 == 0:
                    check()
                    producer.poll(0)
                    if failures:
                        break
                if sent % REPORT_EVERY == 0:
                    on_progress(sent)
            deadline = time.monotonic() + FLUSH_SECONDS_MAX
            while (left := producer.flush(WAIT_SECONDS)) and time.monotonic() < deadline:
                check()
    except KafkaException as error:
        raise ProduceFailed(f"cannot produce to {topic}: {error}") from None
    if failures or left:
        reason = failures[0] if failures else f"no answer within {FLUSH_SECONDS_MAX:.0f} s"
        raise ProduceFailed(f"{sent - acknowledged} of {sent} records were not acknowledged: {reason}")
    on_progress(sent)
    return acknowledged


@contextmanager
def _interrupts_between_calls() -> Iterator[Callable[[], None]]:
    """Hold back SIGINT and SIGTERM; the yielded function raises KeyboardInterrupt if a signal arrived.

    A KeyboardInterrupt raised inside a delivery callback would become a SystemError without a reason in librdkafka's
    binding.
    """
    came: list[int] = []
    kept = {
        number: signal.signal(number, lambda number, _frame: came.append(number))
        for number in (signal.SIGINT, signal.SIGTERM)
    }

    def check() -> None:
        if came:
            raise KeyboardInterrupt

    try:
        yield check
        check()
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)
