"""What the leader's quota leaves of a follower's fetch, and what of the answer counts (KIP-73)."""

from collections.abc import Callable, Iterable, Sequence

from headwater.logtier.log.log import Log
from headwater.logtier.protocol.fetch_response import FetchedPartition
from headwater.logtier.protocol.topic_partition import TopicPartition
from headwater.logtier.replication.partition import Partition
from headwater.logtier.replication.partition_reads import FetchPartition
from headwater.logtier.replication.replication_throttles import ReplicationThrottle

PartitionOf = Callable[[TopicPartition], Partition[Log] | None]
"""Returns the usable replica of a partition on this broker, None without one."""


def throttled_fetch(
    throttle: ReplicationThrottle,
    wanted: Sequence[FetchPartition],
    follower_id: int,
    partition_of: PartitionOf,
    now_ms: int,
) -> Sequence[FetchPartition]:
    """Return what of a follower's fetch the leader's quota permits, while it is active: others are as they were.

    A throttled partition whose watermark does not wait for the follower gets at most the allowance, and nothing while
    the quota is exceeded.
    """
    allowance = throttle.allowance(now_ms)
    permitted = []
    for each in wanted:
        key = each.topic_partition
        if throttle.is_throttled(key) and not _is_exempt(partition_of(key), follower_id, each.offset):
            each = each._replace(bytes_max=min(each.bytes_max, allowance), is_throttled=not allowance)
        permitted.append(each)
    return permitted


def record_answer(
    throttle: ReplicationThrottle,
    wanted: Iterable[FetchPartition],
    fetched: Iterable[FetchedPartition],
    follower_id: int,
    partition_of: PartitionOf,
    now_ms: int,
) -> None:
    """Count what a follower gets of throttled partitions."""
    for each, found in zip(wanted, fetched, strict=True):
        if found.size and throttle.is_throttled(each.topic_partition):
            is_exempt = _is_exempt(partition_of(each.topic_partition), follower_id, each.offset)
            throttle.record(each.topic_partition, found.size, now_ms, is_exempt=is_exempt)


def _is_exempt(partition: Partition[Log] | None, follower_id: int, offset: int) -> bool:
    return partition is not None and partition.is_awaited(follower_id, offset)
