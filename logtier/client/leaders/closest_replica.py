"""The replicas that leaders have named to a client of their rack (KIP-392). No I/O."""

from __future__ import annotations

__all__ = ["PreferredReplicas"]

TopicPartition = tuple[str, int]


class PreferredReplicas:
    """The replica to read from instead of the leader, by partition.

    A preference ends after `metadata.max.age.ms`, or with the first error of the replica. After an error the leader
    serves the next fetch itself, so that a replica that is behind cannot keep a reader from its records.
    """

    def __init__(self, max_age_ms: int) -> None:
        self._max_age_s = max_age_ms / 1000
        self._preferred: dict[TopicPartition, tuple[int, float]] = {}
        self._failed: set[TopicPartition] = set()

    def prefer(self, key: TopicPartition, node_id: int, now_s: float) -> None:
        """Notes the replica that the leader has named."""
        self._preferred[key] = (node_id, now_s + self._max_age_s)

    def replica(self, key: TopicPartition, now_s: float) -> int | None:
        """Returns the replica to read from; None for the leader."""
        found = self._preferred.get(key)
        if found is None:
            return None
        node_id, until_s = found
        if now_s >= until_s:
            del self._preferred[key]
            return None
        return node_id

    def drop(self, key: TopicPartition) -> None:
        """Goes back to the leader after an error of the replica."""
        if self._preferred.pop(key, None) is not None:
            self._failed.add(key)

    def states_rack(self, key: TopicPartition) -> bool:
        """Whether the next fetch at the leader states the rack: not the first one after an error of the replica."""
        if key in self._failed:
            self._failed.discard(key)
            return False
        return True
