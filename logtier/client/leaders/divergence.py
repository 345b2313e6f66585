"""Whether a new leader's log has what a reader knows: by the ends of leader epochs (KIP-101, KIP-320). Pure."""

from __future__ import annotations

from typing import Final, NamedTuple

__all__ = ["UNKNOWN_DIVERGENCE", "EpochEndOffset", "divergence"]

#: The leader knows neither the epoch nor an earlier one.
UNKNOWN_DIVERGENCE: Final = -1


class EpochEndOffset(NamedTuple):
    """The greatest leader epoch at or below the one asked for, and its end offset; -1 and -1 if there is none."""

    leader_epoch: int
    end_offset: int


def divergence(end: EpochEndOffset, offset: int, leader_epoch: int, *, is_epoch_of_record: bool) -> int | None:
    """Returns the offset from which on a leader's log lacks records; None if all before `offset` are there.

    Args:
        end: The leader's answer for `leader_epoch`.
        is_epoch_of_record: Whether the record before `offset` has this epoch: a log without the epoch lacks the record.

    >>> divergence(EpochEndOffset(3, 100), 100, 3, is_epoch_of_record=True) is None
    True
    >>> divergence(EpochEndOffset(3, 90), 100, 3, is_epoch_of_record=True)
    90
    >>> divergence(EpochEndOffset(2, 120), 100, 3, is_epoch_of_record=True)
    99
    >>> divergence(EpochEndOffset(2, 120), 100, 3, is_epoch_of_record=False) is None
    True
    >>> divergence(EpochEndOffset(-1, -1), 100, 3, is_epoch_of_record=True) == UNKNOWN_DIVERGENCE
    True
    >>> divergence(EpochEndOffset(-1, -1), 0, 3, is_epoch_of_record=False) is None
    True
    """
    if offset <= 0:
        return None  # a log without records may have no epochs
    if end.leader_epoch < 0 or end.end_offset < 0:
        return UNKNOWN_DIVERGENCE
    if end.end_offset < offset:
        return end.end_offset
    return offset - 1 if is_epoch_of_record and end.leader_epoch < leader_epoch else None
