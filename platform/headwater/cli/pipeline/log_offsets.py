"""Offsets from the brokers: log end offsets, and committed offsets of groups."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headwater.logtier.client.cluster import ClusterClient


def log_ends(cluster: ClusterClient, topics: Iterable[str]) -> dict[str, dict[int, int]]:
    """Return the log end offset of each partition by topic; deleted topics are omitted."""
    from headwater.logtier.client.cluster import LATEST
    from headwater.logtier.client.errors import UnknownTopicError

    wanted: dict[tuple[str, int], int] = {}
    for topic in topics:
        try:
            wanted |= {(topic, partition): LATEST for partition in cluster.partitions(topic)}
        except UnknownTopicError:
            continue
    found: dict[str, dict[int, int]] = {}
    for (topic, partition), offset in (cluster.list_offsets(wanted) if wanted else {}).items():
        found.setdefault(topic, {})[partition] = offset
    return found


def group_offsets(cluster: ClusterClient, group: str) -> dict[str, dict[int, int]]:
    """Return the committed offset of each partition of a consumer group, by topic."""
    from headwater.logtier.client.group_offsets import committed_group_offsets

    found: dict[str, dict[int, int]] = {}
    for (topic, partition), offset in committed_group_offsets(cluster, [group])[group].items():
        found.setdefault(topic, {})[partition] = offset
    return found
