"""One partition that this broker follows, and the limits of its fetches."""

from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID

from headwater.logtier.config import BrokerConfig
from headwater.logtier.protocol.topic_partition import TopicPartition


@dataclass(frozen=True, slots=True, eq=False)
class FollowedPartition:
    """A partition under one leader in one leader epoch. Compared by identity: a later following is another one.

    Attributes:
        is_in_sync: Whether this broker is in the ISR.
    """

    topic_partition: TopicPartition
    topic_id: UUID
    leader_id: int
    leader_epoch: int
    is_in_sync: bool


class FetchLimits(NamedTuple):
    """Kafka's configs of the fetches of followers.

    Attributes:
        partition_bytes_max: `replica.fetch.max.bytes`; the first batch may be larger.
        response_bytes_max: `replica.fetch.response.max.bytes`, likewise.
        bytes_min: `replica.fetch.min.bytes`.
        wait_ms_max: `replica.fetch.wait.max.ms`.
        backoff_ms: `replica.fetch.backoff.ms`, the pause after a failure of a partition or of a whole fetch.
        timeout_ms: `replica.socket.timeout.ms`, the time limit of a request.
    """

    partition_bytes_max: int
    response_bytes_max: int
    bytes_min: int
    wait_ms_max: int
    backoff_ms: int
    timeout_ms: int


def fetch_limits(config: BrokerConfig) -> FetchLimits:
    """Return the limits of a broker's config."""
    return FetchLimits(
        config.replica_fetch_max_bytes,
        config.replica_fetch_response_max_bytes,
        config.replica_fetch_min_bytes,
        config.replica_fetch_wait_max_ms,
        config.replica_fetch_backoff_ms,
        config.replica_socket_timeout_ms,
    )
