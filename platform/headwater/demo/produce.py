"""Produces the demo's records with librdkafka, as any client would."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

REPORT_EVERY = 50_000  # records between two calls of `on_progress`
FLUSH_SECONDS_MAX = 60.0


class ProduceFailed(Exception):  # noqa: N818 - it says what happened
    """Records were not acknowledged; the message says how many and why."""


def produce(
    bootstrap_servers: str,
    topic: str,
    records: Iterable[tuple[bytes | None, bytes]],
    on_progress: Callable[[int], None],
) -> int:
    """Produce records in order, idempotently; returns how many were acknowledged. Raises ProduceFailed.

    The partitioner is that of the Java client: murmur2 of the key, and any partition for records without a key.
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
        for key, value in records:
            while True:
                try:
                    producer.produce(topic, value=value, key=key, on_delivery=delivered)
                    break
                except BufferError:
                    producer.poll(0.1)
            sent += 1
            if sent % 1_000 == 0:
                producer.poll(0)
                if failures:
                    break
            if sent % REPORT_EVERY == 0:
                on_progress(sent)
        left = producer.flush(FLUSH_SECONDS_MAX)
    except KafkaException as error:
        raise ProduceFailed(f"cannot produce to {topic}: {error}") from None
    if failures or left:
        reason = failures[0] if failures else f"no answer within {FLUSH_SECONDS_MAX:.0f} s"
        raise ProduceFailed(f"{sent - acknowledged} of {sent} records were not acknowledged: {reason}")
    on_progress(sent)
    return acknowledged
