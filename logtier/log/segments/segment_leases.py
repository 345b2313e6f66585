"""Leases that keep a log's older segments unchanged."""

from enum import Enum
from types import TracebackType


class SegmentUse(Enum):
    """Purpose of a lease, which determines the operations that must wait."""

    #: The segments are being cleaned: retention deletes none of them.
    CLEANING = "cleaning"
    #: The segments are being copied to another folder: the cleaner replaces none of them.
    COPYING = "copying"


class SegmentLeases:
    """The active leases on a log's older segments, any number for each use."""

    __slots__ = ("_out",)

    def __init__(self) -> None:
        self._out: set[SegmentLease] = set()

    def take(self, use: SegmentUse) -> "SegmentLease":
        """Lease the segments until the lease is given back."""
        lease = SegmentLease(self._out, use)
        self._out.add(lease)
        return lease

    def are_out_for(self, use: SegmentUse) -> bool:
        """Whether there is a lease for this use."""
        return any(lease.use is use for lease in self._out)


class SegmentLease:
    """A lease; a `with` statement gives it back at its end. Giving it back again has no effect."""

    __slots__ = ("_out", "use")

    def __init__(self, out: "set[SegmentLease]", use: SegmentUse) -> None:
        self._out = out
        self.use = use

    def give_back(self) -> None:
        """End the lease."""
        self._out.discard(self)

    def __enter__(self) -> None:
        """Enter the block for which the segments are leased."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.give_back()
