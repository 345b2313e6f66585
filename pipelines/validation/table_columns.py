"""The columns that a Delta sink's table cannot have, as far as the pipeline's file determines them, without a JVM."""

from __future__ import annotations

from collections.abc import Callable

from headwater.pipelines import columns
from headwater.pipelines.definition import DeltaSink, Loaded, Stage
from headwater.pipelines.definition.sinks.underscore_columns import left_out
from headwater.pipelines.sinks.delta import merge_columns
from headwater.pipelines.sinks.delta.merge_columns import CURRENT, VALID_FROM, VALID_TO
from headwater.pipelines.validation.column_checks import names_written

__all__ = ["impossible", "names_known"]

_HISTORY = (VALID_FROM, VALID_TO, CURRENT)  # columns that a merge with scd: 2 makes


def names_known(loaded: Loaded, stage: Stage, sink: DeltaSink) -> frozenset[str] | None:
    """Names in lower case of the table's columns, without those of its rows' origin; None if only Spark can tell."""
    names = names_written(loaded, stage)
    return None if names is None else names | {name.lower() for name in (*sink.partitions, *_made(sink))}


def impossible(sink: DeltaSink, names: frozenset[str] | None) -> Callable[[str], bool]:
    """Whether the table cannot have a column of a name, given its `names_known`."""
    merge = sink.merge
    stored = {*columns.KEPT, *((columns.SOURCE_POSITION,) if merge is not None and merge.sequence else ())}
    never = {*columns.RESERVED} - stored - set(sink.partitions)
    never |= set() if merge is None else {columns.OPERATION}
    made = _made(sink)

    def is_impossible(name: str) -> bool:
        if name in never:
            return True
        if merge is None:
            is_stored = not left_out(sink.underscore_columns, [name], sink.columns_kept)
        else:
            is_stored = name in made or bool(merge_columns.stored(sink, merge, [name]))
        if not is_stored:
            return True
        # A column with a leading _ may be of the rows' origin, which the names do not include.
        return names is not None and name.lower() not in names and not name.startswith("_")

    return is_impossible


def _made(sink: DeltaSink) -> tuple[str, ...]:
    return _HISTORY if sink.merge is not None and sink.merge.scd == 2 else ()
