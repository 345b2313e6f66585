"""Assigns the replicas of new partitions to brokers: pure."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest


def assign_replicas(
    brokers: Mapping[int, str | None], replication_factor: int, partitions: range, start: int
) -> list[tuple[int, ...]]:
    """Spread partitions over brokers: leaders in rotation from `start` on, followers after them.

    The distance from a leader to its first follower grows with each rotation, so that all other brokers share the
    partitions of a failed broker. If all brokers have a rack, the replicas of a partition are in as many racks as there
    are, and leaders rotate over the racks (KIP-36).

    Args:
        brokers: Racks by broker id.

    >>> assign_replicas({1: None, 2: None, 3: None}, 2, range(0, 4), 0)
    [(1, 2), (2, 3), (3, 1), (1, 3)]
    >>> assign_replicas({1: "a", 2: "a", 3: "b", 4: "b"}, 2, range(0, 4), 0)
    [(1, 3), (3, 2), (2, 4), (4, 1)]
    """
    count = len(brokers)
    assert 1 <= replication_factor <= count, "checked by the caller"
    racks = _racks(brokers)
    rotation = _alternating(racks)
    rack_count = len(set(racks.values()))
    # Without racks each broker is one, and a step is one broker.
    step = 1 if rack_count == count else rack_count
    return [
        tuple(_replicas(rotation, racks, replication_factor, (start + index) % count, index // count * step))
        for index in partitions
    ]


def _racks(brokers: Mapping[int, str | None]) -> dict[int, str]:
    """Return a rack for each broker: its own, if all brokers have one."""
    known = {broker: rack for broker, rack in brokers.items() if rack is not None}
    return known if len(known) == len(brokers) else {broker: str(broker) for broker in brokers}


def _alternating(racks: Mapping[int, str]) -> list[int]:
    """Return the brokers in an order that takes one of each rack in turn."""
    of_rack: dict[str, list[int]] = defaultdict(list)
    for broker in sorted(racks):
        of_rack[racks[broker]].append(broker)
    rounds = zip_longest(*of_rack.values())
    return [broker for each in rounds for broker in each if broker is not None]


def _replicas(
    rotation: Sequence[int], racks: Mapping[int, str], replication_factor: int, first: int, shift: int
) -> Iterator[int]:
    """Yield the leader and its followers: as long as there is a rack without a replica, the next one is there."""
    count = len(rotation)
    yield rotation[first]
    used_brokers, used_racks = {rotation[first]}, {racks[rotation[first]]}
    all_racks = len(set(racks.values()))
    distance = shift
    while len(used_brokers) < replication_factor:
        broker = rotation[(first + 1 + distance % (count - 1)) % count]
        distance += 1
        if broker not in used_brokers and (racks[broker] not in used_racks or len(used_racks) == all_racks):
            used_brokers.add(broker)
            used_racks.add(racks[broker])
            yield broker
