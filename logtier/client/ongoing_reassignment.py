"""A partition whose replicas are being reassigned, as ListPartitionReassignments (KIP-455) answers it. Pure."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["OngoingReassignment"]


@dataclass(frozen=True, slots=True)
class OngoingReassignment:
    """A partition whose replicas are being reassigned; each element is a broker id.

    Attributes:
        replicas: All present replicas: those of the target first, in its order, then those that are removed.
        adding: The replicas that are not yet part of the partition: they copy it.
        removing: The replicas that are removed once all added ones are in sync.
    """

    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]

    @property
    def target(self) -> tuple[int, ...]:
        """Return the replicas after the reassignment, the preferred leader first.

        >>> OngoingReassignment((4, 2, 1), adding=(4,), removing=(1,)).target
        (4, 2)
        """
        return tuple(each for each in self.replicas if each not in self.removing)

    @property
    def origin(self) -> tuple[int, ...]:
        """Return the replicas before the reassignment, in the order of `replicas`.

        >>> OngoingReassignment((4, 2, 1), adding=(4,), removing=(1,)).origin
        (2, 1)
        """
        return tuple(each for each in self.replicas if each not in self.adding)
