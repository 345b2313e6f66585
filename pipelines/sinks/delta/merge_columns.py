"""The columns that a merged Delta table stores, and those whose changes start a new state of a history. Pure.

What a merged table remembers of its changes are Delta tables in its folder, removed and moved with it. The merged table
and its readers are unaffected: Delta neither lists nor vacuums folders that begin with `_`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Final

from headwater.pipelines import columns
from headwater.pipelines.definition.sinks.underscore_columns import left_out

if TYPE_CHECKING:
    from headwater.pipelines.definition import DeltaSink, Merge

__all__ = ["CURRENT", "VALID_FROM", "VALID_TO", "WRITTEN_AT", "check", "stored", "tracked"]

# Columns of a history that the sink computes.
VALID_FROM: Final = "_valid_from"
VALID_TO: Final = "_valid_to"
CURRENT: Final = "_current"
# Of what is remembered: when a row was; allows users to remove old ones.
WRITTEN_AT: Final = "_written_at"


def stored(sink: DeltaSink, merge: Merge, names: Iterable[str]) -> list[str]:
    """Those of `names`, the columns of the rows and the layout, that the table stores.

    >>> from headwater.pipelines.definition import DeltaSink
    >>> sink = DeltaSink.model_validate({"delta": "t", "merge": {"keys": "ID", "columns": "name"}})
    >>> stored(sink, sink.merge, ["id", "Name", "age", "_offset", "_timestamp"])
    ['id', 'Name', '_offset']
    >>> sink = DeltaSink.model_validate({"delta": "t", "merge": {"keys": "ID", "except": ["AGE"]}})
    >>> stored(sink, sink.merge, ["id", "Name", "age", "_offset", "_timestamp"])
    ['id', 'Name', '_offset', '_timestamp']
    >>> sink = DeltaSink.model_validate({"delta": "t", "merge": {"keys": "ID"}, "underscore_columns": "omit"})
    >>> stored(sink, sink.merge, ["id", "Name", "age", "_offset", "_timestamp"])
    ['id', 'Name', 'age']
    """
    if merge.columns is None:
        excepted = _lower(merge.excepted or ())
        found = [name for name in names if name.lower() not in excepted]
    else:
        kept = _lower((*merge.columns, *merge.ordering_columns, *sink.layout))
        found = [name for name in names if name.lower() in kept]
    omitted = left_out(sink.underscore_columns, found, sink.columns_kept)
    return [name for name in found if name not in omitted]


def tracked(sink: DeltaSink, merge: Merge, names: Iterable[str], rows: Collection[str]) -> list[str] | None:
    """Those of `names`, the table's columns, whose changes start a new state; None if every change does.

    `rows` are the columns of the stage's rows. All columns but some exclude those that identify or order changes, a
    record's origin, and partition columns that the sink computes: others determine their values.

    >>> from headwater.pipelines.definition import DeltaSink
    >>> merge = {"keys": "id", "sequence": "v", "scd": 2, "track_history": {"except": ["seen"]}}
    >>> sink = DeltaSink.model_validate({"delta": "t", "merge": merge, "partition_by": ["year(at) AS y"]})
    >>> rows = ["id", "v", "name", "Seen", "at", "_offset"]
    >>> tracked(sink, sink.merge, [*rows, "y", "_valid_from", "_valid_to", "_current"], rows)
    ['name', 'at']
    """
    history = merge.track_history
    if history is None:
        return None
    if history.columns is not None:
        wanted = _lower(history.columns)
        return [name for name in names if name.lower() in wanted]
    computed = _lower(sink.partitions) - _lower(rows)
    other = (*merge.keys, *merge.sequence, *columns.RESERVED, VALID_FROM, VALID_TO, CURRENT)
    untracked = _lower((*(history.excepted or ()), *other)) | computed
    return [name for name in names if name.lower() not in untracked]


def check(merge: Merge, names: Iterable[str]) -> None:
    """Check that the columns named exist among `names`, all columns that could be stored. Raises ValueError.

    Columns that `except` names may be missing: rows come to have them, and lose them.

    >>> from headwater.pipelines.definition import Merge
    >>> check(Merge.model_validate({"keys": "id", "columns": ["nmae"]}), ["id", "name"])
    Traceback (most recent call last):
    ValueError: columns names nmae, which is none of the columns that the table could store: id, name
    >>> check(Merge.model_validate({"keys": "id", "except": ["seen"]}), ["id", "name"])
    """
    history = merge.track_history
    given = {"columns": merge.columns, "track_history": history.columns if history is not None else None}
    there = list(names)
    known = _lower(there)
    for field, wanted in given.items():
        for name in wanted or ():
            if name.lower() not in known:
                what = "which is none of the columns that the table could store"
                raise ValueError(f"{field} names {name}, {what}: {', '.join(there)}")


def _lower(names: Iterable[str]) -> set[str]:
    return {name.lower() for name in names}
