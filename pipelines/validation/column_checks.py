"""SQL errors that follow from the declared columns and Spark's list of functions, found without Spark.

Only certain errors are reported. Spark checks the rest (code that may register functions, columns that only Spark
determines, nested queries): it analyses every stage before a run reads any record.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterator
from typing import TYPE_CHECKING, Final

from headwater.pipelines.definition import (
    DeduplicateStep,
    Loaded,
    PythonSink,
    PythonStep,
    RateSource,
    Source,
    SqlStep,
    Stage,
    StatefulStep,
    TopicSource,
    WatermarkStep,
)
from headwater.pipelines.definition.graph import input_views
from headwater.pipelines.definition.yaml_source import Loc
from headwater.pipelines.errors import Problem, nearest
from headwater.pipelines.rows.column_types import from_ddl
from headwater.pipelines.sql_text.functions import FUNCTIONS
from headwater.pipelines.sql_text.shape import parsed_query, sql_shape
from headwater.pipelines.validation.declared_columns import of_input

if TYPE_CHECKING:
    from sqlglot import exp

__all__ = ["check_columns", "names_written", "unknown_excepted"]

#: Identifiers that are function arguments rather than columns: `timestampadd(HOUR, 1, at)`.
_UNITS: Final = frozenset(
    "microsecond millisecond second minute hour day dayofyear week month quarter year".split()  # noqa: SIM905
)
#: No function: a clause that turns text into the name of a column, a table or a function.
_MAKES_A_NAME: Final = "identifier"
_Names = frozenset[str] | None


def check_columns(loaded: Loaded) -> Iterator[Problem]:
    """Unknown functions and columns in all stages, and state that Spark would refuse without a watermark."""
    own_functions = _may_have_functions(loaded)
    for stage in loaded.pipeline.stages:
        names = yield from _steps(loaded, stage, own_functions=own_functions)
        yield from _sinks(loaded, stage, names)


def unknown_excepted(loaded: Loaded) -> Iterator[Problem]:
    """Warnings of columns that an `except` names and the rows do not have: rows may lose a column."""
    for stage in loaded.pipeline.stages:
        given = [
            (position, more, wanted)
            for position, sink in enumerate(stage.to)
            for more, wanted in sink.columns_excepted()
            if wanted
        ]
        names = names_written(loaded, stage) if given else None
        if names is None:
            continue
        for position, more, wanted in given:
            held = names | {name.lower() for name in stage.to[position].partitions}
            loc = loaded.sink_loc(stage, position, *more)
            yield from _named(loaded, loc, wanted, held, "the column")


def names_written(loaded: Loaded, stage: Stage) -> frozenset[str] | None:
    """Names in lower case of the columns of a stage's rows, without those of their origin; None if only Spark can
    determine them.
    """
    steps = _steps(loaded, stage, own_functions=True)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            names: _Names = end.value
            return names


def _steps(loaded: Loaded, stage: Stage, *, own_functions: bool) -> Generator[Problem, None, _Names]:
    """Problems of a stage's inputs and steps; the names of its rows' columns."""
    known = {source.name.lower(): _input_names(loaded, source) for source in stage.inputs}
    yield from _watermarks(loaded, stage)
    names = next(iter(known.values())) if len(known) == 1 else None
    has_watermark = any(source.watermark for source in stage.inputs)
    for position, step in enumerate(stage.transforms):
        if isinstance(step, SqlStep):
            loc = loaded.stage_loc(stage, "sql") if stage.sql else loaded.stage_loc(stage, "steps", position, "sql")
            tree = parsed_query(step.sql)
            views = {name.lower(): names for name in input_views(stage, position)} if position else known | (
                {"input": names} if len(known) == 1 else {}
            )  # fmt: skip
            if tree is not None:
                if not own_functions:
                    yield from _functions(loaded, loc, tree)
                yield from _columns(loaded, loc, tree, views)
                if not has_watermark and position < stage.stream_steps:
                    yield from _without_watermark(loaded, stage, loc, step, position)
            names = _outputs(tree, views)
        elif isinstance(step, WatermarkStep):
            has_watermark = True
            loc = loaded.stage_loc(stage, "steps", position, "watermark", "column")
            yield from _named(loaded, loc, [step.watermark.column], names, "the watermark's column")
        elif isinstance(step, DeduplicateStep):
            has_watermark = has_watermark or step.deduplicate.within is not None
            loc = loaded.stage_loc(stage, "steps", position, "deduplicate", "by")
            yield from _named(loaded, loc, step.deduplicate.by, names, "the column")
        elif isinstance(step, StatefulStep):
            loc = loaded.stage_loc(stage, "steps", position, "stateful", "by")
            yield from _named(loaded, loc, step.stateful.by, names, "the column")
            made = from_ddl(step.stateful.output)
            names = None if made is None else frozenset(name.lower() for name in made)
        else:
            names, has_watermark = None, True  # the effect of code is unknown
    return names


def _may_have_functions(loaded: Loaded) -> bool:
    """Whether functions other than Spark's own may exist: registered by code, by extensions, or in a catalog."""
    pipeline = loaded.pipeline
    code = any(
        isinstance(part, PythonStep | StatefulStep | PythonSink)
        for stage in pipeline.stages
        for part in (*stage.transforms, *stage.to)
    )
    settings = ("spark.sql.extensions", "spark.jars", "spark.sql.catalog", "spark.plugins")
    return code or any(name.startswith(settings) for name in pipeline.spark)


def _input_names(loaded: Loaded, source: Source) -> _Names:
    """The certain columns of an input: files may have more columns, from the names of their folders."""
    if not isinstance(source, TopicSource | RateSource):
        return None
    found = of_input(loaded, source)
    return None if found is None else frozenset(name.lower() for name in found)


def _is_column(name: str, names: Collection[str]) -> bool:
    """Whether a name is a known column. Names with a leading _ are a record's origin, which every stage may have."""
    first = name.strip().strip("`").lower()
    return first in names or first.partition(".")[0].strip("`") in names or first.startswith("_")


def _named(loaded: Loaded, loc: Loc, wanted: Collection[str], names: _Names, what: str) -> Iterator[Problem]:
    for name in wanted if names is not None else ():
        if not _is_column(name, names or ()):
            yield loaded.problem(loc, f"{what} '{name}' is none of the rows' columns", _near(name, names or ()))


def _near(name: str, names: Collection[str]) -> str:
    return nearest(name, sorted(names)) or f"there are {', '.join(sorted(names))}"


def _watermarks(loaded: Loaded, stage: Stage) -> Iterator[Problem]:
    for position, source in enumerate(stage.inputs):
        if source.watermark is not None:
            loc = loaded.input_loc(stage, position, "watermark", "column")
            names = _input_names(loaded, source)
            yield from _named(loaded, loc, [source.watermark.column], names, "the watermark's column")


def _functions(loaded: Loaded, loc: Loc, tree: exp.Query) -> Iterator[Problem]:
    from sqlglot import exp

    for call in tree.find_all(exp.Anonymous):
        name = call.name.lower()
        if (
            name in FUNCTIONS
            or name in ("", _MAKES_A_NAME)
            or isinstance(call.parent, exp.Dot)
            or call.find_ancestor(exp.Hint)
        ):
            continue
        yield loaded.problem(loc, f"there is no function '{name}'", nearest(name, sorted(FUNCTIONS)))


def _plain_select(tree: exp.Query | None) -> exp.Select | None:
    """The query, if it is a SELECT whose columns come only from the views in its FROM."""
    from sqlglot import exp

    if not isinstance(tree, exp.Select) or len(list(tree.find_all(exp.Select))) != 1:
        return None
    others = (exp.SetOperation, exp.CTE, exp.Subquery, exp.Lateral, exp.Unnest, exp.Pivot, exp.Values, exp.Kwarg,
              exp.PropertyEQ)  # fmt: skip
    tables = list(tree.find_all(exp.Table))
    if any(call.name.lower() == _MAKES_A_NAME for call in tree.find_all(exp.Anonymous)):
        return None
    if tree.find(*others) or not all(isinstance(each.this, exp.Identifier) and not each.db for each in tables):
        return None
    return tree if all(not each.args.get("alias") or not each.alias_column_names for each in tables) else None


def _columns(loaded: Loaded, loc: Loc, tree: exp.Query, views: dict[str, _Names]) -> Iterator[Problem]:
    from sqlglot import exp

    select = _plain_select(tree)
    if select is None:
        return
    by_alias = {each.alias_or_name: views.get(each.name) for each in select.find_all(exp.Table)}
    known: set[str] = set()
    for names in by_alias.values():
        if names is None:
            return
        known |= names
    also = {column.alias for column in select.expressions if isinstance(column, exp.Alias)}
    also |= {str(each.name) for call in select.find_all(exp.Lambda) for each in call.expressions}
    also |= FUNCTIONS | _UNITS  # functions without parentheses, and `window`, which grouping by it adds
    told: set[str] = set()
    for column in select.find_all(exp.Column):
        parts = [part.name for part in column.parts]
        if isinstance(column.this, exp.Star) or parts[0] in also or _is_column(parts[0], known):
            continue
        owner = by_alias.get(parts[0])
        if parts[0] in by_alias and (len(parts) == 1 or _is_column(parts[1], owner or ())):
            continue
        name = ".".join(parts)
        if name not in told:
            told.add(name)
            near = owner if owner is not None else known
            yield loaded.problem(loc, f"there is no column '{name}'", _near(parts[-1], near))


def _outputs(tree: exp.Query | None, views: dict[str, _Names]) -> _Names:
    """The names of a SELECT's columns; None if only Spark can determine them."""
    from sqlglot import exp

    select = _plain_select(tree)
    if select is None:
        return None
    found: set[str] = set()
    for column in select.expressions:
        if isinstance(column, exp.Star) and not any(column.args.values()):
            for table in select.find_all(exp.Table):
                names = views.get(table.name)
                if names is None:
                    return None
                found |= names
        elif isinstance(column, exp.Alias | exp.Column) and not column.is_star and column.alias_or_name:
            found.add(column.alias_or_name)
        else:
            return None
    return frozenset(found)


def _without_watermark(loaded: Loaded, stage: Stage, loc: Loc, step: SqlStep, position: int) -> Iterator[Problem]:
    """Operators that Spark refuses because no row would ever be final."""
    if stage.mode != "append":
        return
    for each in sql_shape(step.sql, input_views(stage, position)).operators:
        if each["kind"] == "aggregate" and each["keys"]:
            what = "mode: append writes a group once it is final, and without a watermark none ever is"
            yield loaded.problem(loc, what, "give the input a watermark, or take mode: update or complete")
            return
        if each["kind"] == "join" and each["how"].split()[0] in ("LEFT", "RIGHT", "FULL") and (
            each["how"].split()[-1] not in ("SEMI", "ANTI")
        ):  # fmt: skip
            what = "an outer join of streams writes a row without match once none can come, which a watermark tells"
            yield loaded.problem(loc, what, "give the inputs watermarks, and the join a condition on their times")
            return


def _sinks(loaded: Loaded, stage: Stage, names: _Names) -> Iterator[Problem]:
    if names is None:
        return
    for position, sink in enumerate(stage.to):
        held = names | {name.lower() for name in sink.partitions}
        for more, wanted, what in sink.columns_named():
            yield from _named(loaded, loaded.sink_loc(stage, position, *more), wanted, held, what)
        for more, expression in sink.expressions():
            # A partition column may use the partition columns before it; the delete condition may use none of them.
            before = sink.partitions[: int(more[1])] if more[0] == "partition_by" else ()
            known = names | {name.lower() for name in before}
            yield from _expression(loaded, loaded.sink_loc(stage, position, *more), expression, known)
    for position, expectation in enumerate(stage.expect):
        yield from _expression(loaded, loaded.stage_loc(stage, "expect", position, "that"), expectation.that, names)


def _expression(loaded: Loaded, loc: Loc, text: str, names: frozenset[str]) -> Iterator[Problem]:
    tree = parsed_query(f"SELECT {text} FROM rows")  # noqa: S608 - parsed, never run
    if tree is not None:
        yield from _columns(loaded, loc, tree, {"rows": names})
