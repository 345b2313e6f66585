"""Records that one of two replicas lacks, until a later record of their key explains why. Pure."""

from __future__ import annotations

from typing import Final, NamedTuple

UNMATCHED_MAX: Final = 100_000
"""Records remembered for each pair of replicas, about 25 MB. The keys of a large compacted topic are more, so that only
a random part of them is followed (see `UnmatchedRecords`)."""


class Unmatched(NamedTuple):
    """A record that only one replica has.

    Attributes:
        keeper: The broker that has it; `lacking` is the other one.
        producer_id: Of the record's open transaction; -1 outside of one.
    """

    offset: int
    keeper: int
    lacking: int
    producer_id: int = -1


class UnmatchedRecords:
    """The latest record of each key that one of two replicas lacks.

    A cleaner removes a record only if its key has a later one, so a replica lacks a record rightly if a later record of
    the key follows in either of them. What remains at the end of the log is a loss.

    Invariant: at most `records_max` records, whatever the number of keys. When they are full, half of the keys, chosen
    by their hash, are followed no more: what is dropped is counted, and the rest is followed over the whole log. Python
    draws the hash anew in each process, so that another run follows other keys.
    """

    def __init__(self, records_max: int = UNMATCHED_MAX) -> None:
        self._records_max = records_max
        self._by_key: dict[int, Unmatched] = {}
        self._open: dict[int, set[int]] = {}
        self._mask = 0
        #: Number of records that were not followed.
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._by_key)

    def see(self, key: bytes) -> None:
        """Note a record of a key at a later offset, in either replica: an earlier one was replaced by it."""
        self._remove(hash(key))

    def add(self, key: bytes, record: Unmatched) -> None:
        """Note a record that only one replica has, the latest of its key so far."""
        hashed = hash(key)
        self._remove(hashed)
        if hashed & self._mask:
            self.dropped += 1
            return
        self._by_key[hashed] = record
        if record.producer_id >= 0:
            self._open.setdefault(record.producer_id, set()).add(hashed)
        while len(self._by_key) > self._records_max:
            self._halve()

    def end_transaction(self, producer_id: int, *, committed: bool) -> None:
        """Note the end of a transaction: a cleaner removes the records of an aborted one."""
        for hashed in self._open.pop(producer_id, ()):
            if not committed:
                self._by_key.pop(hashed, None)

    def forget_below(self, offset: int) -> None:
        """Drop records before the start of a log."""
        for hashed in [hashed for hashed, record in self._by_key.items() if record.offset < offset]:
            self._remove(hashed)

    def remaining(self) -> list[Unmatched]:
        """Return the records that nothing explains yet, in the order of their offsets."""
        return sorted(self._by_key.values())

    def _remove(self, hashed: int) -> None:
        record = self._by_key.pop(hashed, None)
        if record is not None and record.producer_id >= 0 and record.producer_id in self._open:
            self._open[record.producer_id].discard(hashed)

    def _halve(self) -> None:
        self._mask = self._mask * 2 + 1
        for hashed in [hashed for hashed in self._by_key if hashed & self._mask]:
            self._remove(hashed)
            self.dropped += 1
