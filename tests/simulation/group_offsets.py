"""Requests for the committed offsets of a group."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from headwater.logtier.client.connection import Request
from headwater.logtier.client.messages import ApiKey, kio_request
from headwater.logtier.protocol.errors import ErrorCode
from headwater.logtier.protocol.topic_partition import TopicPartition

#: The last version of OffsetCommit with the generation of a classic member.
OFFSET_COMMIT = 8
_OFFSET_FETCH = 7


def offset_commit(
    group: str,
    key: TopicPartition,
    offset: int,
    *,
    version: int = OFFSET_COMMIT,
    epoch: int = -1,
    member_id: str = "",
) -> Request[Any]:
    """Commit an offset: as a member in its generation or epoch, or as nobody."""
    partition = {
        "partition_index": key.partition,
        "committed_offset": offset,
        "committed_leader_epoch": -1,
        "committed_metadata": None,
    }
    values = {
        "group_id": group,
        "generation_id_or_member_epoch": epoch,
        "member_id": member_id,
        "group_instance_id": None,
        "topics": ({"name": key.topic, "partitions": (partition,)},),
    }
    return kio_request(ApiKey.OFFSET_COMMIT, version, values)


def offset_fetch(group: str, keys: Iterable[TopicPartition], *, require_stable: bool = False) -> Request[Any]:
    """Ask for offsets; with `require_stable`, the answer waits for open transactions that have others."""
    topics: dict[str, list[int]] = {}
    for topic, partition in keys:
        topics.setdefault(topic, []).append(partition)
    values = {
        "group_id": group,
        "topics": tuple({"name": name, "partition_indexes": tuple(found)} for name, found in topics.items()),
        "require_stable": require_stable,
    }
    return kio_request(ApiKey.OFFSET_FETCH, _OFFSET_FETCH, values)


def retried_if_unstable(code: int) -> int:
    """The code of an offset as one that is retried: of an open transaction, or of a coordinator not confirmed yet."""
    return int(ErrorCode.request_timed_out) if code == ErrorCode.unstable_offset_commit else code
