"""How far an archive's table is, without a JVM: read from the table's log by delta-rs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headwater.pipelines.seam.marks import APPEND, ID_PROPERTY, MODE_PROPERTY, TOPIC_PROPERTY, end_mark

if TYPE_CHECKING:
    from deltalake import DeltaTable

__all__ = ["SeamError", "TableOffsets", "offsets_of", "table_offsets"]


class SeamError(Exception):
    """A table cannot be read, or is no archive's; the message is one line."""


@dataclass(frozen=True, slots=True)
class TableOffsets:
    """An archive's table at one version.

    Attributes:
        topic_id: The id of the topic that it is of.
        ends: The next offset of each partition.
        mode: How records become rows (`seam.marks.MODE_PROPERTY`).
        committed_ms: When the version was committed, in milliseconds since 1970.
        properties: All properties of the table, where they were read.
    """

    version: int
    topic: str
    topic_id: str
    committed_ms: int
    ends: dict[int, int] = field(default_factory=dict)
    mode: str = APPEND
    properties: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)


def table_offsets(path: str) -> TableOffsets | None:
    """The newest offsets of a table, which is a path or URL; None without a table. Raises SeamError."""
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError, TableNotFoundError

    try:
        return offsets_of(DeltaTable(path), path)
    except TableNotFoundError:
        return None
    except (DeltaError, OSError, ValueError) as error:
        raise SeamError(f"the table {path} cannot be read: {str(error).splitlines()[0]}") from None


def offsets_of(table: DeltaTable, path: str) -> TableOffsets:
    """The offsets of an open table. Raises SeamError if no archive made it, and delta-rs's errors."""
    properties = table.metadata().configuration
    topic_id = properties.get(ID_PROPERTY)
    if topic_id is None:
        raise SeamError(f"the table {path} was not made by an archive")
    ends: dict[int, int] = {}
    # A topic's partitions are numbered without gaps, and the archive begins all that it finds.
    while (end := table.transaction_version(end_mark(topic_id, len(ends)))) is not None:
        ends[len(ends)] = end
    last = next(iter(table.history(1)), {})  # the newest first; it may return more than asked for
    return TableOffsets(
        table.version(),
        properties.get(TOPIC_PROPERTY, ""),
        topic_id,
        int(last.get("timestamp", 0)),
        ends,
        properties.get(MODE_PROPERTY, APPEND),
        properties,
    )
