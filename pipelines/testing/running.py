"""Runs a pipeline's tests in one Spark session, without a broker."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from headwater.pipelines.analysis.analysis import Analysis
from headwater.pipelines.definition import Loaded, PipelineTest, SqlStep, Stage
from headwater.pipelines.definition.expected_tables import ExpectedTable, expected_tables
from headwater.pipelines.definition.graph import tables_named, tables_used
from headwater.pipelines.errors import PipelineError, Problem, nearest
from headwater.pipelines.rows import given_rows
from headwater.pipelines.rows.column_types import Columns, of_schema
from headwater.pipelines.rows.comparison import Difference, compare
from headwater.pipelines.rows.given_rows import Feature
from headwater.pipelines.sinks.kinds import kind_of_sink
from headwater.pipelines.sources.tables import read_table
from headwater.pipelines.spark.spark_errors import first_line
from headwater.pipelines.testing import stage_columns
from headwater.pipelines.testing.feeding import Feed, arrow_table
from headwater.pipelines.testing.results import Judged, RunOutcome
from headwater.pipelines.testing.sink_tables import SinkTables
from headwater.pipelines.testing.stage_run import Observed, StageRun, dead_letter_part
from headwater.pipelines.validation.stage_test_checks import LETTER_FIELDS, check_rows, feature, place_of, rows_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

SESSION_CONF: Final = {
    # A test has few rows: a task costs more than processing them, and a separate session needs less memory.
    "spark.sql.shuffle.partitions": "1",
    "spark.driver.memory": "1g",
    "spark.sql.adaptive.enabled": "false",
}
# Settings that select a cluster, and settings that only a cluster needs.
_OF_CLUSTERS: Final = ("spark.master", "spark.submit.", "spark.kubernetes.", "spark.yarn.", "spark.executor.")


def session_settings(loaded: Loaded, given: Mapping[str, str]) -> dict[str, str]:
    """Settings of the tests' session: the pipeline's own without deployment settings; `given` overrides.

    Settings with secrets are omitted, too: tests need no secrets.
    """
    own = {
        name: text.reveal()
        for name, text in loaded.pipeline.spark.items()
        if not name.startswith(_OF_CLUSTERS) and "${" not in str(text)
    }
    return {**own, **SESSION_CONF, **given}


def chosen(loaded: Loaded, names: Sequence[str]) -> list[PipelineTest]:
    """The tests with these names; all without names. Raises PipelineError."""
    tests = list(loaded.pipeline.tests)
    if not tests:
        what = "the pipeline has no tests"
        raise PipelineError([loaded.problem((), what, "write some: docs/how-to/testing_pipelines.md says how")])
    known = [test.name for test in tests]
    for name in names:
        if name not in known:
            raise PipelineError([loaded.problem(("tests",), f"there is no test '{name}'", nearest(name, known))])
    return [test for test in tests if not names or test.name in names]


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A test whose rows fit the columns of its stage."""

    test: PipelineTest
    stage: Stage
    inputs: tuple[StructType, ...]
    output: Columns
    tables: tuple[tuple[ExpectedTable, Columns], ...] = ()


class StageTests:
    """The tests to run. The constructor raises PipelineError with every problem of the tests."""

    def __init__(self, spark: SparkSession, loaded: Loaded, tests: Sequence[PipelineTest]) -> None:
        self._spark = spark
        self._loaded = loaded
        self._analysis: Analysis = stage_columns.analyse_tested(spark, loaded, tests)
        problems: list[Problem] = []
        self._prepared = [self._prepare(test, problems) for test in tests]
        if problems:
            raise PipelineError(problems)

    def run(self, on_result: Callable[[Judged], None]) -> list[Judged]:
        """Run the tests in sequence; `on_result` is called with each result."""
        results = []
        for prepared in self._prepared:
            with tempfile.TemporaryDirectory(prefix="headwater-test-") as folder:
                results.append(self._run(prepared, folder))
            on_result(results[-1])
        return results

    def _prepare(self, test: PipelineTest, problems: list[Problem]) -> _Prepared:
        loaded, analysis = self._loaded, self._analysis
        stage = loaded.pipeline.stage(test.stage)
        session = self._session()
        for name, schema in analysis.columns.tables.items():
            session.createDataFrame([], schema).createOrReplaceTempView(f"`{name}`")
        inputs = tuple(
            stage_columns.input_schema(session, stage, i, analysis.columns) for i in range(len(stage.inputs))
        )
        rows = stage_columns.output_rows(session, stage, analysis)
        output = of_schema(rows.schema)
        loc = place_of(loaded, test)
        for source, schema in zip(stage.inputs, inputs, strict=True):
            if source.name in test.given:
                place = (*loc, "given", source.name)
                problems += check_rows(loaded, place, test.given[source.name], of_schema(schema), feature(source))
        for name in [name for name in test.given if name in analysis.columns.tables]:
            columns = of_schema(analysis.columns.tables[name])
            problems += check_rows(loaded, (*loc, "given", name), test.given[name], columns, Feature())
        if test.expect is not None:
            problems += check_rows(loaded, (*loc, "expect"), test.expect, output, Feature())
        tables = []
        for table in expected_tables(loaded, stage, test):
            stored = kind_of_sink(table.sink).stored(table.sink, rows)
            assert stored is not None, "a Delta sink determines its columns"
            tables.append((table, of_schema(stored)))
            problems += check_rows(loaded, (*loc, *table.within), table.rows, tables[-1][1], Feature())
        problems += self._unreadable_tables(session, test, stage)
        return _Prepared(test, stage, inputs, output, tuple(tables))

    def _unreadable_tables(self, session: SparkSession, test: PipelineTest, stage: Stage) -> list[Problem]:
        """Problems of tables that the stage uses, that the test does not provide, and that cannot be read."""
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException

        problems = []
        for name in tables_used(self._loaded.pipeline, stage):
            try:
                if name not in test.given and name.lower() in _named(stage):
                    read_table(session, self._loaded, self._analysis.columns, name, "").schema  # noqa: B018 - analysed here
            except (PySparkException, Py4JError) as error:
                loc = (*place_of(self._loaded, test), "given")
                what = f"the table '{name}' is not given, and cannot be read: {first_line(error)}"
                problems.append(self._loaded.problem(loc, what, f"give its rows: {name}: []"))
        return problems

    def _session(self) -> SparkSession:
        return self._spark.newSession()

    # -- one test ----------------------------------------------------------------------------------------------------

    def _run(self, prepared: _Prepared, folder: str) -> Judged:
        test, loaded = prepared.test, self._loaded
        outcomes = []
        for number, (way, rows_max) in enumerate(self._ways(prepared, folder)):
            place = os.path.join(folder, str(number))
            run = self._stage_run(prepared, rows_max, place)
            observed = run.as_batch() if way == "batch" else run.as_stream(place)
            said = way if rows_max is None else f"{way}, {rows_max} row{'s' if rows_max > 1 else ''} a micro-batch"
            outcomes.append(self._judged(prepared, said, observed))
        mark = loaded.document.mark(place_of(loaded, test))
        file = mark.file or loaded.document.file
        return Judged(test.name, test.stage, file, mark.line, mark.column, tuple(outcomes))

    def _ways(self, prepared: _Prepared, folder: str) -> list[tuple[str, int | None]]:
        """The ways to run the test, in order; for a stream with the maximum of rows per micro-batch."""
        test = prepared.test
        wanted = test.run
        if not wanted:
            looked_at = self._stage_run(prepared, None, os.path.join(folder, "look"))
            wanted = ("stream",) if looked_at.keeps_state() else ("batch", "stream")
        found: list[tuple[str, int | None]] = []
        for way in wanted:
            found += [(way, None)] if way == "batch" else [(way, size) for size in test.rows_per_batch or (None,)]
        return found

    def _stage_run(self, prepared: _Prepared, rows_max: int | None, folder: str) -> StageRun:
        test, stage, loaded = prepared.test, prepared.stage, self._loaded
        session = self._session()
        self._make_tables(session, test, stage)
        batches = []
        for source, schema in zip(stage.inputs, prepared.inputs, strict=True):
            given = rows_of(loaded, test.given.get(source.name, ()))
            batches.append(given_rows.micro_batches(given, of_schema(schema), feature(source), rows_max))
        feeds = []
        for position, fed in enumerate(given_rows.in_step(batches)):
            feed = Feed(session, self._analysis.columns, stage.inputs[position], prepared.inputs[position])
            feed.write(fed, os.path.join(folder, f"input-{position}"))
            feeds.append(feed)
        tables = SinkTables(session, loaded, stage, [table.sink for table, _ in prepared.tables], folder)
        return StageRun(session, loaded, stage, self._analysis, feeds, tables)

    def _make_tables(self, session: SparkSession, test: PipelineTest, stage: Stage) -> None:
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException

        for name in tables_used(self._loaded.pipeline, stage):
            if name in test.given:
                schema = self._analysis.columns.tables[name]
                rows = given_rows.typed_rows(rows_of(self._loaded, test.given[name]), of_schema(schema))
                frame = session.createDataFrame(arrow_table(rows, schema), schema)
            else:
                try:
                    frame = read_table(session, self._loaded, self._analysis.columns, name, "")
                except (PySparkException, Py4JError):
                    continue  # code may read any table; a missing one is reported at the read
            frame.createOrReplaceTempView(f"`{name}`")

    # -- results -----------------------------------------------------------------------------------------------------

    def _judged(self, prepared: _Prepared, way: str, seen: Observed) -> RunOutcome:
        test = prepared.test
        if seen.error:
            return RunOutcome(way, faults=(f"the stage failed: {seen.error}",))
        faults = []
        if seen.stopped_by != (test.stopped_by or ""):
            wanted = f"by {test.stopped_by}" if test.stopped_by else "not at all"
            was = f"by {seen.stopped_by}" if seen.stopped_by else "not"
            faults.append(f"the stage is expected to be stopped {wanted}, and was stopped {was}")
        faults += [
            f"{seen.unmet.get(name, 0)} rows do not meet {name}, and {count} are expected"
            for name, count in (test.unmet or {}).items()
            if seen.unmet.get(name, 0) != count
        ]
        rows: list[Difference] = []
        if test.expect is not None:
            expected = given_rows.typed_rows(rows_of(self._loaded, test.expect), prepared.output)
            rows = compare(expected, seen.rows, in_order=test.in_order)
        tables = {}
        for table, columns in prepared.tables:
            expected = given_rows.typed_rows(rows_of(self._loaded, table.rows), columns)
            tables[table.sink.delta] = tuple(compare(expected, seen.tables[table.sink.delta]))
        letters: list[Difference] = []
        if isinstance(test.dead_letters, int):
            if len(seen.letters) != test.dead_letters:
                faults.append(f"there are {len(seen.letters)} dead letters, and {test.dead_letters} are expected")
                letters = compare([], seen.letters)
        elif test.dead_letters is not None:
            letters = compare([_letter(row) for row in rows_of(self._loaded, test.dead_letters).rows], seen.letters)
        return RunOutcome(way, tuple(rows), tuple(letters), tuple(faults), tables)


def _named(stage: Stage) -> set[str]:
    """Tables that the stage's SQL names, in lower case."""
    return {
        name.lower() for step in stage.transforms if isinstance(step, SqlStep) for name in tables_named(step.sql)[0]
    }


def _letter(row: Mapping[str, Any]) -> dict[str, Any]:
    """An expected dead letter, with key and value in the form of actual ones."""
    assert set(row) <= set(LETTER_FIELDS), "checked when the file was read"
    return {
        name: dead_letter_part(v) if name in ("key", "value") and isinstance(v, str | bytes) else v
        for name, v in row.items()
    }
