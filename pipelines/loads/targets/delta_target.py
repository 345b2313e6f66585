"""A Delta table as the target of loads: a load is one commit, which is its manifest.

The commit has the load's rows, its marks (`delta_marks`), and its manifest as userMetadata. A file of the same content
is written afterwards, and made again from the commit when it is missing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from headwater.pipelines.file_systems.file_system import join
from headwater.pipelines.loads.counted_rows import counted
from headwater.pipelines.loads.errors import LoadError, LoadFailed
from headwater.pipelines.loads.offsets.chain import chain_after
from headwater.pipelines.loads.offsets.planning import TargetState
from headwater.pipelines.loads.offsets.ranges import Ranges, joined
from headwater.pipelines.loads.rows import place_columns
from headwater.pipelines.loads.targets.delta_marks import PREFIX, TableLoads, marks_of
from headwater.pipelines.loads.targets.manifest import Manifest
from headwater.pipelines.loads.targets.records import LoadRecords
from headwater.pipelines.loads.targets.schemas import check_schema, schema_text
from headwater.pipelines.loads.targets.target import Writing
from headwater.pipelines.locks.table_lock import table_lock
from headwater.pipelines.seam.marks import ID_PROPERTY, TOPIC_PROPERTY, TRANSACTION_RETENTION, refusal_of_others
from headwater.pipelines.spark import jvm_delta
from headwater.pipelines.spark.spark_errors import is_delta_conflict

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["DeltaTarget", "in_ranges"]

_METADATA_KEY: Final = "headwater.load"
_CONFLICT: Final = "another load into the table was committed meanwhile: nothing of this one was added"
_COMMIT_INFO_BYTES_MAX: Final = 16 << 20
_HISTORY_MAX: Final = 50  # commits of others, since the last load


class DeltaTarget:
    """See `Target`."""

    def __init__(self, records: LoadRecords, topic_id: str) -> None:
        self._records = records
        self._path = records.target
        self._topic_id = topic_id
        self._loads = TableLoads(0, TargetState())
        self._transaction: Any = None

    def refresh(self, spark: SparkSession) -> TargetState:
        """Read the table's marks, and write the last load's manifest if its driver did not."""
        self._require_table_or_nothing()
        transaction = jvm_delta.start_delta_transaction(spark, self._path)
        if jvm_delta.delta_property(transaction, ID_PROPERTY) is not None:
            topic = jvm_delta.delta_property(transaction, TOPIC_PROPERTY)
            raise LoadError(f"{refusal_of_others(self._path, topic)}: load into another target")
        self._loads = TableLoads.of(jvm_delta.delta_marks(transaction, PREFIX), self._topic_id)
        retention = jvm_delta.delta_property(transaction, TRANSACTION_RETENTION)
        if retention is not None:
            raise LoadError(
                f"the table has the property {TRANSACTION_RETENTION} = {retention}: it would forget what was "
                "loaded; unset it"
            )
        if self._loads.sequence:
            self._restore_manifest(jvm_delta.delta_version(transaction))
        elif self._records.has_loads():
            raise LoadError(
                f"the table {self._path} has no marks of its loads, and there are manifests: it was replaced, or its "
                "transactions expired; load into another table, or remove its _headwater folder to begin anew"
            )
        self._transaction = transaction
        return self._loads.loaded

    def _require_table_or_nothing(self) -> None:
        names = [entry.name for entry in self._records.files.list(self._path)]
        if "_delta_log" not in names and any(not name.startswith(("_", ".")) for name in names):
            raise LoadError(f"{self._path} holds files and is no Delta table: name a folder of its own")

    def _restore_manifest(self, version: int) -> None:
        """Write the manifest of the last load from its commit, if it is missing and the commit is a recent one.

        Commits are read as files: Delta's own history is a Spark job.
        """
        for number in range(version, max(version - _HISTORY_MAX, -1), -1):
            path = join(self._path, "_delta_log", f"{number:020}.json")
            try:
                with self._records.files.open(path) as file:
                    first = file.readline(_COMMIT_INFO_BYTES_MAX)  # Delta writes commitInfo before all other actions
            except FileNotFoundError:
                return  # cleaned up
            found = _manifest_in(first, path)
            if found is not None:
                if not self._records.has_manifest(found):
                    self._records.write_manifest(found)
                return

    def write(self, spark: SparkSession, writing: Writing) -> Manifest:  # noqa: ARG002 - a target's
        """Write the rows and commit them, with their marks and their manifest."""
        import delta.tables  # noqa: F401 - it teaches PySpark the names of Delta's conflicts
        from pyspark.errors import PySparkException

        plan, before = writing.plan, self._loads.loaded
        sequence = self._loads.sequence + 1
        # That of `refresh`: a load that was committed since has raised the mark that every load reads.
        transaction = self._transaction
        schema = schema_text(writing.rows.schema.json())
        check_schema(jvm_delta.delta_schema(transaction), schema, merge=writing.merge_schema)
        rows, counts = counted(writing.rows, writing.late_before_ms)
        written: list[Manifest] = []

        @contextmanager
        def committing() -> Iterator[str]:
            number, refused, late = counts()
            manifest = Manifest(
                plan,
                sequence,
                "delta",
                number,
                refused,
                schema,
                tuple(writing.partition_by),
                replaces=writing.replaced is not None,
                coverage=joined(before.coverage, plan.covered),
                chain_ends=chain_after(before, plan.covered),
                loaded_at=datetime.now(UTC).isoformat(timespec="seconds"),
                late=late,
            )
            writing.before_commit()
            written.append(manifest)
            with table_lock(self._path):
                yield json.dumps({_METADATA_KEY: manifest.value()})

        try:
            jvm_delta.commit_delta_append(
                transaction,
                rows,
                writing.partition_by,
                marks_of(self._topic_id, sequence, before, {} if writing.replaced is not None else plan.covered),
                merge_schema=writing.merge_schema,
                replaced="" if writing.replaced is None else in_ranges(plan.ranges, *place_columns(rows.columns)),
                committing=committing,
            )
        except PySparkException as error:
            if is_delta_conflict(error):
                raise LoadFailed(_CONFLICT) from None
            raise
        [manifest] = written
        self._records.write_manifest(manifest)
        return manifest


def in_ranges(ranges: Ranges, partition: str, offset: str) -> str:
    """The condition for rows of some offsets, by the names of two columns; '' for none.

    >>> in_ranges({0: ((5, 9), (12, 13))}, "p", "o")
    '(p = 0 AND o >= 5 AND o < 9) OR (p = 0 AND o >= 12 AND o < 13)'
    """
    return " OR ".join(
        f"({partition} = {number} AND {offset} >= {start} AND {offset} < {end})"
        for number, parts in sorted(ranges.items())
        for start, end in parts
    )


def _manifest_in(commit_info: bytes, path: str) -> Manifest | None:
    """The manifest in a commit's first action; None for another writer's."""
    try:
        value: Any = json.loads(json.loads(commit_info)["commitInfo"]["userMetadata"])[_METADATA_KEY]
    except (KeyError, TypeError, ValueError):
        return None
    return Manifest.decode(json.dumps(value).encode(), path)
