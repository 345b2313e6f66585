"""The configs by which a reassignment is throttled (KIP-73), as kafka-reassign-partitions.sh sets them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from headwater.cli.reassignment.plan import PartitionMove

__all__ = ["RATES", "REPLICA_LISTS", "is_of_a_run", "throttled_rates", "throttled_replicas"]

#: Broker configs: bytes a second that a broker sends as a leader, or fetches as a follower, of throttled replicas.
RATES: Final = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")
#: Topic configs: the throttled replicas, as partition:broker.
LEADER_REPLICAS: Final = "leader.replication.throttled.replicas"
FOLLOWER_REPLICAS: Final = "follower.replication.throttled.replicas"
REPLICA_LISTS: Final = (LEADER_REPLICAS, FOLLOWER_REPLICAS)
_EVERY_REPLICA: Final = "*"


def throttled_rates(brokers: Iterable[int], bytes_per_second: int) -> dict[str, dict[str, str]]:
    """Return the configs of brokers.

    >>> throttled_rates([1], 1_000)["1"]["leader.replication.throttled.rate"]
    '1000'
    """
    rates = dict.fromkeys(RATES, str(bytes_per_second))
    return {str(each): dict(rates) for each in brokers}


def throttled_replicas(moves: Iterable[PartitionMove]) -> dict[str, dict[str, str]]:
    """Return the configs of topics: any replica that a move begins with may come to lead, and the added ones fetch."""
    leaders: dict[str, list[str]] = {}
    followers: dict[str, list[str]] = {}
    for move in moves:
        if move.added:
            topic, partition = move.key
            leaders.setdefault(topic, []).extend(f"{partition}:{each}" for each in move.before)
            followers.setdefault(topic, []).extend(f"{partition}:{each}" for each in move.added)
    return {
        topic: {LEADER_REPLICAS: ",".join(leaders[topic]), FOLLOWER_REPLICAS: ",".join(followers[topic])}
        for topic in leaders
    }


def is_of_a_run(configs: Mapping[str, str]) -> bool:
    """Return whether a topic's lists are a run's: an administrator's permanent throttle names every replica.

    >>> is_of_a_run({LEADER_REPLICAS: "0:1"}), is_of_a_run({LEADER_REPLICAS: "*"}), is_of_a_run({})
    (True, False, False)
    """
    values = [configs[each] for each in REPLICA_LISTS if configs.get(each)]
    return bool(values) and _EVERY_REPLICA not in values
