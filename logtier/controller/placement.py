"""Assigns the replicas of new partitions to brokers: pure."""

from collections import defaultdict, deque
from collections.abc import Collection, Mapping, Sequence, Set
from itertools import zip_longest


def assign_replicas(
    brokers: Mapping[int, str | None],
    replication_factor: int,
    partitions: range,
    start: int,
    away: Set[int] = frozenset(),
) -> list[tuple[int, ...]]:
    """Spread partitions over brokers: leaders in rotation from `start` on, followers after them.

    The distance from a leader to its first follower grows with each rotation, so that all other brokers share the
    partitions of a failed broker. If all brokers have a rack, the replicas of a partition are in as many racks as there
    are, and leaders rotate over the racks (KIP-36).

    Brokers that are away get replicas if the other brokers, or their racks, are too few; these replicas come last, and
    fetch when the brokers are back. The first replica, which is to lead, is on a broker that is not away.

    Args:
        brokers: Racks by broker id, those that are away included.
        away: Brokers that cannot lead now; not all of them.

    >>> assign_replicas({1: None, 2: None, 3: None}, 2, range(0, 4), 0)
    [(1, 2), (2, 3), (3, 1), (1, 3)]
    >>> assign_replicas({1: "a", 2: "a", 3: "b", 4: "b"}, 2, range(0, 4), 0)
    [(1, 3), (3, 2), (2, 4), (4, 1)]
    >>> assign_replicas({1: None, 2: None, 3: None}, 3, range(0, 2), 0, away={2})
    [(1, 3, 2), (3, 1, 2)]
    """
    assert 1 <= replication_factor <= len(brokers), "checked by the caller"
    racks = _racks(brokers)
    present = _alternating({broker: rack for broker, rack in racks.items() if broker not in away})
    absent = _alternating({broker: rack for broker, rack in racks.items() if broker in away})
    count = len(present)
    rack_count = len({racks[broker] for broker in present})
    # Without racks each broker is one, and a step is one broker.
    step = 1 if rack_count == count else rack_count
    assigned = []
    for index in partitions:
        leader, *others = _turned(present, start + index)
        walks = _turned(others, index // count * step), _turned(absent, start + index)
        replicas = _with_followers(leader, walks, racks, replication_factor)
        assigned.append(tuple(sorted(replicas, key=away.__contains__)))
    return assigned


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


def _turned(brokers: Collection[int], distance: int) -> deque[int]:
    """Return the brokers in a circle that begins at a distance."""
    circle = deque(brokers)
    circle.rotate(-distance)
    return circle


def _with_followers(
    leader: int, walks: Sequence[deque[int]], racks: Mapping[int, str], replication_factor: int
) -> list[int]:
    """Return the replicas of a partition: as long as there is a rack without a replica, the next one is there.

    Args:
        walks: The other brokers, each walk only for what those before it do not have.
    """
    replicas = [leader]
    all_racks = set(racks.values())
    while len(replicas) < replication_factor:
        used_racks = {racks[broker] for broker in replicas}
        barred = used_racks if used_racks != all_racks else frozenset[str]()
        found = (_take(walk, racks, barred) for walk in walks)
        replicas.append(next(broker for broker in found if broker is not None))
    return replicas


def _take(walk: deque[int], racks: Mapping[int, str], barred: Set[str]) -> int | None:
    """Take the next broker that is in none of the barred racks off the walk, which goes on behind it."""
    for _ in range(len(walk)):
        broker = walk.popleft()
        if racks[broker] not in barred:
            return broker
        walk.append(broker)
    return None
