"""The columns that a Delta sink's table cannot have, as far as the pipeline's file determines them, without a JVM."""

from __future__ import annotations

from collections.abc import Callable

from headwater.pipelines import columns
from headwater.pipelines.definition import DeltaSink, Loaded, Stage
from headwater.pipelines.sources.debezium import OP
from headwater.pipelines.validation.column_checks import names_written

__all__ = ["HISTORY", "impossible", "names_known"]

HISTORY = ("_valid_from", "_valid_to", "_current")  # columns that a merge with scd: 2 makes


def names_known(loaded: Loaded, stage: Stage, sink: DeltaSink) -> frozenset[str] | None:
    """Names in lower case of the table's columns, without those of its rows' origin; None if only Spark can tell."""
    names = names_written(loaded, stage)
    if names is None:
        return None
    made = HISTORY if sink.merge is not None and sink.merge.scd == 2 else ()
    return names | {name.lower() for name in (*sink.partitions, *made)}


def impossible(sink: DeltaSink, names: frozenset[str] | None) -> Callable[[str], bool]:
    """Whether the table cannot have a column of a name, given its `names_known`."""
    merge = sink.merge
    stored = {*columns.KEPT, *((columns.SOURCE_POSITION,) if merge is not None and merge.sequence else ())}
    never = {name for name in columns.RESERVED if name not in stored}
    if merge is not None:
        never.add(OP)
    never -= set(sink.partitions)

    def is_impossible(name: str) -> bool:
        if name in never:
            return True
        # A column with a leading _ may be of the rows' origin, which the names do not include.
        return names is not None and name.lower() not in names and not name.startswith("_")

    return is_impossible
