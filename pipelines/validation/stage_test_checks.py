"""Checks of tests' rows without a JVM; and reading of the rows."""

from __future__ import annotations

import os
from collections.abc import Iterator

from headwater.pipelines.definition import Loaded, PipelineTest, Source, Stage, TopicSource
from headwater.pipelines.definition.expected_tables import ExpectedTable, expected_tables
from headwater.pipelines.definition.tests import Rows
from headwater.pipelines.definition.yaml_source import Loc
from headwater.pipelines.errors import Problem, nearest
from headwater.pipelines.rows import given_rows, row_files
from headwater.pipelines.rows.column_types import Columns
from headwater.pipelines.rows.given_rows import Feature
from headwater.pipelines.rows.row_files import RowsOfFile
from headwater.pipelines.validation import declared_columns, table_columns

LETTER_FIELDS = (
    "error", "expectation", "topic", "stage", "key", "value", "source_topic", "source_partition", "source_offset",
)  # fmt: skip


def check_tests(loaded: Loaded) -> Iterator[Problem]:
    """Problems of the tests' rows and of their files. `stage_test_names` checks names."""
    stages = {stage.name: stage for stage in loaded.pipeline.stages}
    for index, test in enumerate(loaded.pipeline.tests):
        loc: Loc = ("tests", index)
        stage = stages.get(test.stage)
        for name, given in test.given.items():
            if stage is None:
                continue
            source = next((source for source in stage.inputs if source.name == name), None)
            if source is None and name not in loaded.pipeline.tables:
                continue
            yield from check_rows(loaded, (*loc, "given", name), given, known(loaded, stage, name), feature(source))
        if test.expect is not None:
            yield from check_rows(loaded, (*loc, "expect"), test.expect, None, Feature())
        if stage is not None:
            yield from _tables(loaded, loc, stage, test)
        if test.dead_letters is not None and not isinstance(test.dead_letters, int):
            yield from _letters(loaded, (*loc, "dead_letters"), test.dead_letters)


def _tables(loaded: Loaded, loc: Loc, stage: Stage, test: PipelineTest) -> Iterator[Problem]:
    for table in expected_tables(loaded, stage, test):
        yield from check_rows(loaded, (*loc, *table.within), table.rows, None, Feature())
        yield from _unstored(loaded, loc, stage, table)


def _unstored(loaded: Loaded, loc: Loc, stage: Stage, table: ExpectedTable) -> Iterator[Problem]:
    """Expected columns that the table cannot have."""
    try:
        rows = rows_of(loaded, table.rows).rows
    except (ValueError, OSError):
        return  # `check_rows` reports it
    names = table_columns.names_known(loaded, stage, table.sink)
    is_impossible = table_columns.impossible(table.sink, names)
    told: set[str] = set()
    for number, row in enumerate(rows):
        for name in row:
            if name not in told and is_impossible(name):
                told.add(name)
                place = (*loc, *table.within)
                where = place if isinstance(table.rows, str) else (*place, number, name)
                hint = nearest(name, sorted(names)) if names is not None else ""
                yield loaded.problem(where, f"the table {table.sink.delta} has no column '{name}'", hint)


def known(loaded: Loaded, stage: Stage, name: str) -> Columns | None:
    """Columns of an input or a table of that name, as far as files define them."""
    for source in stage.inputs:
        if source.name == name:
            return declared_columns.of_input(loaded, source)
    return declared_columns.of_table(loaded, loaded.pipeline.tables[name])


def feature(source: Source | None) -> Feature:
    """The permitted rows of an input; None is a table."""
    if source is None:
        return Feature()
    topic = source.topic if isinstance(source, TopicSource) else None
    return Feature(topic, source.watermark is not None)


def check_rows(
    loaded: Loaded, loc: Loc, given: Rows | str, columns: Columns | None, kind: Feature
) -> Iterator[Problem]:
    """Problems of rows, each at its position in the pipeline's file, or in the rows' file."""
    try:
        rows = rows_of(loaded, given)
    except (ValueError, OSError) as error:
        yield _unreadable(loaded, loc, str(given), error)
        return
    for fault in given_rows.check(rows, columns, kind):
        if isinstance(given, str):
            number, *more = fault.rest
            column = f", {more[0]}" if more else ""
            what = f"{loaded.path(given)}, row {int(number) + 1}{column}: {fault.message}"
            yield loaded.problem(loc, what, fault.hint)
        else:
            yield loaded.problem((*loc, *fault.rest), fault.message, fault.hint)


def rows_of(loaded: Loaded, given: Rows | str) -> RowsOfFile:
    """The rows in the test, or in its file. Raises ValueError or OSError."""
    if not isinstance(given, str):
        return RowsOfFile(given, are_texts=False)
    path = loaded.path(given)
    if "://" in path:
        raise ValueError("rows of tests are in files of this machine")
    return row_files.read(path)


def _unreadable(loaded: Loaded, loc: Loc, given: str, error: ValueError | OSError) -> Problem:
    path = loaded.path(given)
    if not os.path.isfile(path) and "://" not in path:
        return loaded.problem(loc, f"there is no file {path}", "paths are relative to the pipeline's own folder")
    why = error.strerror if isinstance(error, OSError) else error
    return loaded.problem(loc, f"{path} cannot be used: {why}")


def _letters(loaded: Loaded, loc: Loc, given: Rows | str) -> Iterator[Problem]:
    try:
        rows = rows_of(loaded, given)
    except (ValueError, OSError) as error:
        yield _unreadable(loaded, loc, str(given), error)
        return
    for number, row in enumerate(rows.rows):
        for name in row:
            if name not in LETTER_FIELDS:
                where = loc if isinstance(given, str) else (*loc, number, name)
                yield loaded.problem(where, f"a dead letter has no '{name}'", nearest(name, LETTER_FIELDS))


def place_of(loaded: Loaded, test: PipelineTest) -> Loc:
    """Path of a test in the file."""
    return ("tests", loaded.pipeline.tests.index(test))
