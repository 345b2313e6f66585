"""Reads and commits a consumer group's offsets as a client outside of the group.

A reader that stores its own position (a Spark checkpoint) commits it to a group only for monitoring.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headwater.logtier.client.cluster import ClusterClient, TopicPartition
from headwater.logtier.client.coordinators import ask_group_coordinator
from headwater.logtier.client.errors import UNKNOWN_TOPIC_OR_PARTITION
from headwater.logtier.client.messages import ApiKey

__all__ = ["commit_group_offsets", "committed_group_offsets"]

_NO_OFFSET = -1


def commit_group_offsets(
    cluster: ClusterClient, group: str, offsets: Mapping[TopicPartition, int], metadata: str = ""
) -> None:
    """Commits the next offset of each partition for a group without members.

    Omits partitions of topics that were deleted meanwhile. Raises BrokerError if the group has members
    (UNKNOWN_MEMBER_ID), or for a missing permission.
    """
    if not offsets:
        return
    by_topic: dict[str, list[dict[str, Any]]] = {}
    for (topic, partition), offset in sorted(offsets.items()):
        by_topic.setdefault(topic, []).append(
            {
                "partition_index": partition,
                "committed_offset": offset,
                "committed_leader_epoch": -1,
                "committed_metadata": metadata,
            }
        )
    values = {
        "group_id": group,
        "generation_id_or_member_epoch": -1,
        "member_id": "",
        "group_instance_id": None,
        "topics": tuple({"name": name, "partitions": tuple(parts)} for name, parts in by_topic.items()),
    }

    def code_of(answer: Any) -> int:
        found = [int(part.error_code) for topic in answer.topics for part in topic.partitions]
        return next((code for code in found if code and code != UNKNOWN_TOPIC_OR_PARTITION), 0)

    what = f"committing the offsets of group {group!r}"
    ask_group_coordinator(cluster, group, what, ApiKey.OFFSET_COMMIT, values, code_of)


def committed_group_offsets(cluster: ClusterClient, groups: Sequence[str]) -> dict[str, dict[TopicPartition, int]]:
    """Returns the next offsets that groups have committed, excluding those of open transactions."""
    found: dict[str, dict[TopicPartition, int]] = {}
    for group in groups:
        asked = {"group_id": group, "topics": None, "member_id": None, "member_epoch": -1}
        values = {"groups": (asked,), "require_stable": False}
        what = f"the offsets of group {group!r}"
        answer = ask_group_coordinator(cluster, group, what, ApiKey.OFFSET_FETCH, values, _code)
        [one] = answer.groups
        found[group] = {
            (str(topic.name), int(part.partition_index)): int(part.committed_offset)
            for topic in one.topics
            for part in topic.partitions
            if not part.error_code and part.committed_offset != _NO_OFFSET
        }
    return found


def _code(answer: Any) -> int:
    [one] = answer.groups
    return int(one.error_code)
