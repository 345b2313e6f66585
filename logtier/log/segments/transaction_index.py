"""The index of one segment's aborted transactions."""

import struct
from bisect import bisect_left
from typing import Final, NamedTuple

ENTRY: Final = struct.Struct(">hqqqq")
_VERSION: Final = 0
# Position of the last offset in an entry.
_LAST_OFFSET: Final = struct.Struct(">18xq8x")
assert _LAST_OFFSET.size == ENTRY.size


class AbortedTransaction(NamedTuple):
    """A transaction whose abort marker is in the log.

    `last_offset` is the offset of the marker; `last_stable_offset` is the partition's last stable offset after the
    marker: no later entry concerns records below it.
    """

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class TransactionIndex:
    """The transactions whose abort marker is in the segment, in the order of the markers (KIP-98).

    A read_committed consumer receives them to skip their records. Invariant: last offsets strictly increase. File:
    `<base offset>.txnindex`, Kafka's AbortedTxn version 0, 34 bytes an entry; a segment without aborted transactions
    has no file. Memory holds these bytes; the segment decides when to write them. A crash before the write loses no
    entries, since recovery scans the segment again.

    >>> index = TransactionIndex()
    >>> index.append(AbortedTransaction(7, first_offset=10, last_offset=19, last_stable_offset=20))
    >>> index.search(0, 10), index.search(0, 11)
    (([], True), ([AbortedTransaction(producer_id=7, first_offset=10, last_offset=19, last_stable_offset=20)], True))
    """

    __slots__ = ("_data", "is_unsaved")

    def __init__(self, data: bytes = b"", *, is_unsaved: bool = False) -> None:
        self._data = bytearray(data)
        #: Whether the file differs from `to_bytes`.
        self.is_unsaved = is_unsaved

    def __len__(self) -> int:
        return len(self._data) // ENTRY.size

    def append(self, transaction: AbortedTransaction) -> None:
        """Add a transaction with the newest marker."""
        assert not self._data or self._last_offset(len(self) - 1) < transaction.last_offset, "markers come in order"
        self._data += ENTRY.pack(_VERSION, *transaction)
        self.is_unsaved = True

    def search(self, start_offset: int, end_offset: int) -> tuple[list[AbortedTransaction], bool]:
        """Return the transactions with records in [start, end), and whether no later segment can have further ones."""
        if not self._data:
            return [], False
        found: list[AbortedTransaction] = []
        for i in range(self._first_at_or_after(start_offset), len(self)):
            transaction = self._entry(i)
            if transaction.first_offset < end_offset:
                found.append(transaction)
            if transaction.last_stable_offset >= end_offset:
                return found, True
        return found, False

    def truncate_to(self, offset: int) -> None:
        """Remove the transactions whose marker is at `offset` or later."""
        keep = self._first_at_or_after(offset) * ENTRY.size
        if keep < len(self._data):
            del self._data[keep:]
            self.is_unsaved = True

    def entries(self) -> list[AbortedTransaction]:
        """Return all entries."""
        return [self._entry(i) for i in range(len(self))]

    def to_bytes(self) -> bytes:
        """Return the content of the file."""
        return bytes(self._data)

    @classmethod
    def from_bytes(cls, data: bytes, base_offset: int) -> "TransactionIndex | None":
        """Parse a file; None if it cannot be the index of a segment that begins at `base_offset`."""
        if len(data) % ENTRY.size:
            return None
        previous = base_offset - 1
        for version, _, first_offset, last_offset, _ in ENTRY.iter_unpack(data):
            if version != _VERSION or last_offset <= previous or first_offset > last_offset:
                return None
            previous = last_offset
        return cls(data)

    def _entry(self, i: int) -> AbortedTransaction:
        return AbortedTransaction(*ENTRY.unpack_from(self._data, i * ENTRY.size)[1:])

    def _last_offset(self, i: int) -> int:
        (offset,) = _LAST_OFFSET.unpack_from(self._data, i * ENTRY.size)
        assert isinstance(offset, int)
        return offset

    def _first_at_or_after(self, offset: int) -> int:
        return bisect_left(range(len(self)), offset, key=self._last_offset)
