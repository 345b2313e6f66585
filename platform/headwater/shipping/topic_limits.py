"""Batch size limits of a topic, and the resulting properties of a producer.

librdkafka fills batches up to a megabyte whatever the topic allows, and a broker refuses a batch above
`max.message.bytes` with all its messages, however small each is. A producer therefore queries the topic's config first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Final

BATCH_BYTES: Final = 1_000_000
"""librdkafka's default of `batch.size`: larger batches gain nothing."""
MESSAGE_BYTES_MIN: Final = 1_000
"""librdkafka's minimum of `message.max.bytes`."""
MESSAGE_BYTES_MAX: Final = 1_000_000_000
"""librdkafka's maximum of `message.max.bytes`."""
BATCH_OVERHEAD_BYTES: Final = 61
"""Size of a record batch's header."""
RECORD_OVERHEAD_BYTES: Final = 64
"""Upper bound of a record's size beyond key, value and headers: lengths, deltas, attributes; 36 in fact."""
HEADER_OVERHEAD_BYTES: Final = 10
"""The lengths of a header's name and value."""
CONFIG: Final = "max.message.bytes"


@dataclass(frozen=True, slots=True)
class TopicLimits:
    """The size limit of one topic.

    Attributes:
        batch_bytes_max: The topic's `max.message.bytes`: maximum size of a batch, header included.
    """

    batch_bytes_max: int = BATCH_BYTES

    def properties(self) -> dict[str, int]:
        """Return librdkafka properties for a producer of this topic only.

        >>> TopicLimits(100_000).properties()
        {'batch.size': 100000, 'message.max.bytes': 100000}
        >>> TopicLimits(8_000_000).properties()
        {'batch.size': 1000000, 'message.max.bytes': 8000000}
        >>> TopicLimits(2**31 - 1).properties()
        {'batch.size': 1000000, 'message.max.bytes': 1000000000}
        """
        return {
            "batch.size": max(1, min(BATCH_BYTES, self.batch_bytes_max)),
            "message.max.bytes": min(MESSAGE_BYTES_MAX, max(MESSAGE_BYTES_MIN, self.batch_bytes_max)),
        }

    def value_bytes_max(self, key: bytes | None, headers: Sequence[tuple[str, str | bytes | None]]) -> int:
        """Return the maximum length of the value of a message with this key and these headers, in bytes.

        >>> TopicLimits(1000).value_bytes_max(b"key", [("host", b"h")])
        857
        """
        beside = len(key or b"") + sum(_header_bytes(name, value) for name, value in headers)
        return max(1, self.batch_bytes_max - BATCH_OVERHEAD_BYTES - RECORD_OVERHEAD_BYTES - beside)


def _header_bytes(name: str, value: str | bytes | None) -> int:
    return len(name.encode()) + len(value.encode() if isinstance(value, str) else value or b"") + HEADER_OVERHEAD_BYTES


class LimitsRequest:
    """A running query for a topic's limits; the caller polls it or waits.

    Args:
        properties: Properties of librdkafka's administration client.
        timeout_s: How long to wait for unreachable brokers.
    """

    def __init__(self, properties: Mapping[str, Any], topic: str, timeout_s: float) -> None:
        from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

        self._client = AdminClient(dict(properties))
        resource = ConfigResource(ResourceType.TOPIC, topic)
        self._future: Future[Any] = self._client.describe_configs([resource], request_timeout=timeout_s)[resource]

    def poll(self) -> None:
        """Let librdkafka call back with connection errors (`error_cb`)."""
        self._client.poll(0)

    def is_done(self) -> bool:
        """Whether an answer is available, or the timeout has passed."""
        return self._future.done()

    def answer(self) -> TopicLimits | None:
        """Wait for the limits and return them; None if the topic does not exist or access to its config is denied.

        Raises:
            NoBrokerError: no broker answered within the timeout.
        """
        from confluent_kafka import KafkaException

        try:
            entries = self._future.result()
        except KafkaException as error:
            # librdkafka's own codes are below zero: no broker has said anything.
            if error.args[0].code() < 0:
                raise NoBrokerError(error.args[0].str().removeprefix("Local: ")) from None
            return None
        value = getattr(entries.get(CONFIG), "value", None)
        return TopicLimits(int(value)) if value is not None and value.isdigit() and int(value) > 0 else None


class NoBrokerError(ConnectionError):
    """No broker answered; the message is librdkafka's."""


def read_topic_limits(properties: Mapping[str, Any], topic: str, timeout_s: float) -> TopicLimits:
    """Query a topic's limits and wait for the answer; returns the default if the brokers do not report them."""
    try:
        return LimitsRequest(properties, topic, timeout_s).answer() or TopicLimits()
    except NoBrokerError:
        return TopicLimits()
