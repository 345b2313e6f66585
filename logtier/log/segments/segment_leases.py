"""Who needs a log's older segments to stay as they are."""

from enum import Enum
from types import TracebackType


class SegmentUse(Enum):
    """What older segments are leased for, and so what has to wait."""

    #: They are cleaned: retention deletes none of them.
    CLEANING = "cleaning"
    #: They are copied to another folder: the cleaner replaces none of them.
    COPYING = "copying"


class SegmentLeases:
    """The leases that are out on a log's older segments, any number for each use."""

    __slots__ = ("_out",)

    def __init__(self) -> None:
        self._out: set[SegmentLease] = set()

    def take(self, use: SegmentUse) -> "SegmentLease":
        """Lease the segments, until the lease is given back."""
        lease = SegmentLease(self._out, use)
        self._out.add(lease)
        return lease

    def are_out_for(self, use: SegmentUse) -> bool:
        """Whether anybody has one for this use."""
        return any(lease.use is use for lease in self._out)


class SegmentLease:
    """One holder's lease; `with` gives it back at the end. To give it back twice is fine."""

    __slots__ = ("_out", "use")

    def __init__(self, out: "set[SegmentLease]", use: SegmentUse) -> None:
        self._out = out
        self.use = use

    def give_back(self) -> None:
        """The segments may change again, as far as this holder is concerned."""
        self._out.discard(self)

    def __enter__(self) -> None:
        """Do what the segments are leased for."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.give_back()
