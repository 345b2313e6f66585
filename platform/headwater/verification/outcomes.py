"""What the verification of a partition found. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from headwater.verification.replica_comparison import ReplicaDifference


@dataclass(slots=True)
class PartitionOutcome:
    """The result of one partition.

    Attributes:
        compared: The brokers whose replicas were compared to the end.
        start_offset, end_offset: The interval that was compared; both are 0 if nothing was.
        compared_bytes: Bytes of the first replica's batches in it.
        skipped: Why a broker's replica was not compared, or not to the end, by broker.
        differences: One for each replica that differs, at its first offset.
        unconfirmed: Differences that could not be read a second time; `skipped` says why.
        unfollowed: Records that only one replica has, whose later record was not looked for (`UnmatchedRecords`).
        note: Why the whole partition was not compared, empty if it was.
    """

    topic: str
    partition: int
    compared: tuple[int, ...] = ()
    start_offset: int = 0
    end_offset: int = 0
    compared_bytes: int = 0
    skipped: dict[int, str] = field(default_factory=dict)
    differences: list[ReplicaDifference] = field(default_factory=list)
    unconfirmed: int = 0
    unfollowed: int = 0
    note: str = ""

    def __str__(self) -> str:
        """Return the name, as in `flights-3`."""
        return f"{self.topic}-{self.partition}"

    def value(self) -> dict[str, Any]:
        """Return the fields for programs."""
        return {
            "topic": self.topic,
            "partition": self.partition,
            "compared_brokers": list(self.compared),
            "start_offset": self.start_offset,
            "end_offset": self.end_offset,
            "compared_bytes": self.compared_bytes,
            "differences": [
                {"offset": each.offset, "brokers": list(each.brokers), "reason": each.reason}
                for each in self.differences
            ],
            "not_compared": [{"broker": broker, "reason": reason} for broker, reason in sorted(self.skipped.items())],
            "unconfirmed_differences": self.unconfirmed,
            "unfollowed_records": self.unfollowed,
            "note": self.note,
        }

    def lines(self) -> list[str]:
        """Return one line for each difference, and for whatever was not compared."""
        found = [
            f"{self}: DIFFERENT at offset {each.offset}, brokers {each.brokers[0]} and {each.brokers[1]}: {each.reason}"
            for each in self.differences
        ]
        found += [f"{self}: not compared, broker {broker}: {reason}" for broker, reason in sorted(self.skipped.items())]
        if self.note:
            found.append(f"{self}: not compared: {self.note}")
        if self.unfollowed:
            found.append(
                f"{self}: compared in part: {self.unfollowed:,} records that only one replica has were not followed to "
                "the later record of their key"
            )
        return found


def summary(outcomes: Sequence[PartitionOutcome]) -> str:
    """Return one line on all partitions.

    >>> summary([PartitionOutcome("t", 0, (1, 2), 0, 10, 2_000_000), PartitionOutcome("t", 1, note="no leader")])
    '1 of 2 partitions compared, 10 offsets, 2.0 MB in each replica: no difference'
    """
    compared = [each for each in outcomes if len(each.compared) > 1 or each.differences]
    offsets = sum(each.end_offset - each.start_offset for each in compared)
    size = sum(each.compared_bytes for each in compared) / 1e6
    different = sum(bool(each.differences) for each in outcomes)
    found = "no difference" if not different else f"differences in {different} partition{'s'[: different > 1]}"
    if unconfirmed := sum(each.unconfirmed for each in outcomes):
        found += f", and {unconfirmed} that could not be read a second time"
    counted = f"{len(compared)} of {len(outcomes)} partitions compared, {offsets:,} offsets"
    return f"{counted}, {size:,.1f} MB in each replica: {found}"
