"""Assigns the replicas of new partitions to brokers: pure."""

from collections.abc import Sequence


def assign_replicas(
    brokers: Sequence[int], replication_factor: int, partitions: range, start: int
) -> list[tuple[int, ...]]:
    """Spread partitions over brokers: leaders in rotation from `start` on, followers after them.

    The distance from a leader to its first follower grows by one with each rotation, so that all other brokers share
    the partitions of a failed broker.

    >>> assign_replicas([1, 2, 3], 2, range(0, 4), 0)
    [(1, 2), (2, 3), (3, 1), (1, 3)]
    """
    count = len(brokers)
    assert 1 <= replication_factor <= count, "checked by the caller"
    assigned = []
    for partition in partitions:
        first = (start + partition) % count
        replicas = [brokers[first]]
        shift = partition // count
        for follower in range(replication_factor - 1):
            distance = 1 + (shift + follower) % (count - 1)
            replicas.append(brokers[(first + distance) % count])
        assigned.append(tuple(replicas))
    return assigned
