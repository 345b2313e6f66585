"""Messages between the broker and its cleaner process: JSON lines on a pair of pipes."""

import dataclasses
import json
from dataclasses import dataclass
from typing import Any

from headwater.logtier.log.cleaning.cleaner_policy import SourceSegment
from headwater.logtier.log.segments.transaction_index import AbortedTransaction

NO_DATA_OFFSET = -1


@dataclass(frozen=True, slots=True)
class CleanerJob:
    """One cleaning of one log.

    Args:
        segments: The segments before `end_offset`.
        end_offset: Base offset of the first segment that stays unchanged.
        producers: For each producer that is not expired, the offset of its last record (NO_DATA_OFFSET without one) and
            its epoch. Its last batch stays, if only empty, to preserve its sequence and epoch.
    """

    directory: str
    segments: list[SourceSegment]
    first_dirty_offset: int
    end_offset: int
    now_ms: int
    delete_retention_ms: int
    segment_bytes: int
    segment_index_bytes: int
    index_interval_bytes: int
    aborted: list[AbortedTransaction]
    producers: dict[int, tuple[int, int]]
    dedupe_buffer_bytes: int
    load_factor: float
    io_buffer_bytes: int
    io_bytes_per_second: float

    def to_line(self) -> bytes:
        """Return the job as one line of JSON."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return json.dumps(fields).encode() + b"\n"

    @classmethod
    def from_line(cls, line: bytes) -> "CleanerJob":
        """Parse the output of `to_line`."""
        fields: dict[str, Any] = json.loads(line)
        fields["segments"] = [SourceSegment(*segment) for segment in fields["segments"]]
        fields["aborted"] = [AbortedTransaction(*transaction) for transaction in fields["aborted"]]
        fields["producers"] = {int(key): (offset, epoch) for key, (offset, epoch) in fields["producers"].items()}
        return cls(**fields)


@dataclass(frozen=True, slots=True)
class CleanedGroup:
    """A complete, synced segment with `.cleaned` names, ready to replace its sources."""

    base_offset: int
    source_count: int
    size_bytes: int
    modified_ms: int


@dataclass(frozen=True, slots=True)
class CleanerResult:
    """A finished cleaning, after the reports of all groups. All keys below `cleaned_to` are unique from now on.

    Bytes are of batches on disk; bytes read count both passes.
    """

    cleaned_to: int
    bytes_read: int
    bytes_written: int
    records_read: int
    records_kept: int
    map_utilization: float


@dataclass(frozen=True, slots=True)
class CleanerFailure:
    """A cleaning stopped by damaged records or a disk error. Only groups reported before are used."""

    message: str
    is_damage: bool


CleanerReport = CleanedGroup | CleanerResult | CleanerFailure
_KINDS: dict[str, type[CleanerReport]] = {
    "group": CleanedGroup,
    "result": CleanerResult,
    "failure": CleanerFailure,
}


def report_to_line(report: CleanerReport) -> bytes:
    """Return the report as one line of JSON."""
    kind = next(name for name, cls in _KINDS.items() if isinstance(report, cls))
    return json.dumps({"kind": kind, **dataclasses.asdict(report)}).encode() + b"\n"


def report_from_line(line: bytes) -> CleanerReport:
    """Parse the output of `report_to_line`.

    >>> report_from_line(report_to_line(CleanedGroup(10, 2, 500, 1)))
    CleanedGroup(base_offset=10, source_count=2, size_bytes=500, modified_ms=1)
    """
    fields = json.loads(line)
    return _KINDS[fields.pop("kind")](**fields)
