"""Compares a target's loads with each other, its files and rows with their manifests, and its rows with the log."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from headwater.pipelines.datasource.brokers import Brokers
from headwater.pipelines.file_systems.file_system import FileSystem, join, walk
from headwater.pipelines.loads.errors import LoadError
from headwater.pipelines.loads.offsets.log_state import keeps_all_records, log_state
from headwater.pipelines.loads.offsets.ranges import Ranges, described, joined, minus, shared, size
from headwater.pipelines.loads.rows import RowsPlan, place_columns, raw_records
from headwater.pipelines.loads.targets.delta_target import in_ranges
from headwater.pipelines.loads.targets.manifest import Manifest, TargetDescription
from headwater.pipelines.loads.targets.records import LoadRecords
from headwater.pipelines.loads.targets.staging import described_files
from headwater.pipelines.sources import avro_files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["TargetVerification", "verify"]

_LISTED_MAX: Final = 10
_TASK_ROWS: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class TargetVerification:
    """What was compared, and every difference. `log_offsets` is None where the log was not compared."""

    target: str
    topic: str
    loads: int
    rows: int
    files: int
    log_offsets: int | None
    problems: tuple[str, ...]

    def value(self) -> dict[str, Any]:
        """The result as JSON values."""
        return {
            "target": self.target,
            "topic": self.topic,
            "loads": self.loads,
            "rows": self.rows,
            "files": self.files,
            "log_offsets": self.log_offsets,
            "problems": list(self.problems),
        }

    def __str__(self) -> str:
        """The result in lines."""
        log = "the log was not compared" if self.log_offsets is None else f"{self.log_offsets:,} offsets of the log"
        files = f"{self.files:,} files, " if self.files else ""
        verdict = "as it should be" if not self.problems else f"{len(self.problems)} problems"
        head = f"{self.target}: {verdict}: {self.loads:,} loads of {self.topic}, {files}{self.rows:,} rows, {log}"
        return "\n".join([head, *(f"  {problem}" for problem in self.problems)])


def verify(spark: SparkSession, files: FileSystem, target: str, brokers: Brokers | None) -> TargetVerification:
    """Verify a target. Without `brokers` the log is not compared.

    Raises LoadError for a folder without loads, FileSystemError, LoadFailed and Spark's errors.
    """
    records = LoadRecords(files, target)
    description = records.description()
    if description is None:
        raise LoadError(f"{target} is no target of loads")
    last = records.last_sequence()
    if last and not records.has_manifest(records.commit(last).manifest):
        raise LoadError(f"a load into {target} is running, or was cut short: repeat it, and verify the target then")
    loads = _current(records.manifests())
    problems = _between(loads)
    listed = [file for load in loads for file in load.files]
    if description.format != "delta":
        problems += _files(spark, files, target, loads)
    covered = joined(*(load.plan.ranges for load in loads))
    found = _rows(spark, files, target, description.format, loads) if loads else None
    counted = 0 if found is None else found.count()
    log_offsets = None
    if found is not None:
        problems += _of_rows(found, loads, covered, counted)
        if brokers is not None:
            log_offsets, differences = _against_log(spark, brokers, description, found, covered)
            problems += differences
    return TargetVerification(target, description.topic, len(loads), counted, len(listed), log_offsets, tuple(problems))


def _current(manifests: Sequence[Manifest]) -> list[Manifest]:
    """The loads that hold: of one that was replaced, the last."""
    last = {manifest.plan.id: manifest for manifest in manifests}
    return sorted(last.values(), key=lambda each: each.sequence)


def _between(loads: Sequence[Manifest]) -> list[str]:
    """Gaps and overlaps between the loads."""
    problems = []
    seen: Ranges = {}
    for load in loads:
        twice = shared(seen, load.plan.covered)
        if twice:
            problems.append(f"load {load.plan.id} overlaps earlier ones: {described(twice)}")
        seen = joined(seen, load.plan.covered)
    whole = {partition: ((parts[0][0], parts[-1][1]),) for partition, parts in seen.items()}
    gaps = minus(whole, seen)
    if gaps:
        problems.append(f"{size(gaps):,} offsets between the loads were never loaded: {described(gaps)}")
    return problems


def _files(spark: SparkSession, files: FileSystem, target: str, loads: Sequence[Manifest]) -> list[str]:
    """Files against their manifests."""
    expected = {file.path: file for load in loads for file in load.files}
    present = {name for name, _ in walk(files, target) if not any(map(_is_hidden, name.split("/")))}
    problems = [f"{name} of a load is gone" for name in sorted(expected.keys() - present)]
    problems += [f"{name} is of no load" for name in sorted(present - expected.keys())]
    found = described_files(spark, files, target, sorted(expected.keys() & present))
    for file in found:
        wanted = expected[file.path]
        if file.size != wanted.size:
            problems.append(f"{file.path} has {file.size:,} bytes, and had {wanted.size:,}")
        elif file.sha256 != wanted.sha256:
            problems.append(f"{file.path} has another content than it had (SHA-256)")
    return _shortened(problems, "files")


def _rows(
    spark: SparkSession, files: FileSystem, target: str, form: str, loads: Sequence[Manifest]
) -> DataFrame | None:
    """Partition and offset of each row that a reader sees, as `p` and `o`; None if there are no rows."""
    from pyspark.sql import functions as f
    from pyspark.sql.types import StructType

    listed = [file.path for load in loads for file in load.files]
    whole = StructType.fromJson(json.loads(loads[-1].schema))
    partition, offset = place_columns(whole.fieldNames())
    places = StructType([whole[partition], whole[offset]])
    if form == "delta":
        rows = spark.read.format(form).load(target)
    elif not listed:
        return None
    elif form == "avro":
        there = [join(target, name) for name in listed if files.entry(join(target, name)) is not None]
        if not there:
            return None
        rows = avro_files.batch(spark, there, places)
    else:
        rows = spark.read.schema(places).format(form).load(target)
    return rows.select(f.col(partition).cast("int").alias("p"), f.col(offset).cast("long").alias("o"))


def _of_rows(rows: DataFrame, loads: Sequence[Manifest], covered: Ranges, counted: int) -> list[str]:
    """Rows against the manifests."""
    from pyspark.sql import functions as f

    problems = []
    expected = sum(load.rows for load in loads)
    if counted != expected:
        problems.append(f"{counted:,} rows are there, and {expected:,} were loaded")
    twice = rows.groupBy("p", "o").count().where(f.col("count") > 1).orderBy("p", "o").limit(_LISTED_MAX).collect()
    problems += [f"partition {row[0]}, offset {row[1]} is there {row[2]} times" for row in twice]
    outside = rows.where(f"NOT ({_condition(covered)})").orderBy("p", "o").limit(_LISTED_MAX).collect()
    problems += [f"partition {row[0]}, offset {row[1]} is of no load" for row in outside]
    return problems


def _against_log(
    spark: SparkSession, brokers: Brokers, description: TargetDescription, rows: DataFrame, covered: Ranges
) -> tuple[int | None, list[str]]:
    """Rows against the log's records, of the offsets that the log still has."""
    topic = description.topic
    try:
        log = log_state(brokers, topic)
    except LoadError:
        return None, []  # the topic is gone
    if log.topic_id != description.topic_id:
        return None, []
    there = shared(covered, {p: ((first, log.end[p]),) for p, first in log.first.items()})
    if not there:
        return 0, []
    records = raw_records(spark, brokers, RowsPlan(topic, there, _TASK_ROWS)).selectExpr(
        "partition AS p", "offset AS o"
    )
    loaded = rows.where(_condition(there))
    looks_for_more, problems = keeps_all_records(brokers, topic)
    compares = [(records, loaded, "is in the log and not in the target")]
    if looks_for_more:
        compares.append((loaded, records, "is in the target and not in the log"))
    for frame, other, what in compares:
        found = frame.join(other, ["p", "o"], "left_anti").orderBy("p", "o").limit(_LISTED_MAX).collect()
        problems += [f"partition {row[0]}, offset {row[1]} {what}" for row in found]
    return size(there), problems


def _condition(ranges: Ranges) -> str:
    return in_ranges(ranges, "p", "o") or "false"


def _is_hidden(name: str) -> bool:
    """Whether Spark skips a file or folder: a partition's folder may begin with _."""
    return name.startswith(("_", ".")) and "=" not in name


def _shortened(problems: list[str], what: str) -> list[str]:
    rest = len(problems) - _LISTED_MAX
    return problems if rest <= 0 else [*problems[:_LISTED_MAX], f"and {rest:,} more {what}"]
