"""A folder of files as the target of loads.

A load's files are written below the hidden folder, and committed by a numbered file that lists them (`records`). Only
then are they renamed into place; then comes the manifest, then `_SUCCESS`. A driver that ends in between leaves a
commit without a manifest, which the next one carries out. So readers see whole files only, and of two drivers that both
believe to hold the lock, one commits.
"""

from __future__ import annotations

import uuid
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from headwater.pipelines.file_systems.file_system import join
from headwater.pipelines.loads.chain import chain_after
from headwater.pipelines.loads.counted_rows import counted
from headwater.pipelines.loads.errors import LoadError, LoadFailed
from headwater.pipelines.loads.manifest import LoadedFile, Manifest
from headwater.pipelines.loads.planning import TargetState
from headwater.pipelines.loads.ranges import joined
from headwater.pipelines.loads.records import Commit, LoadRecords
from headwater.pipelines.loads.schemas import check_schema, schema_text
from headwater.pipelines.loads.staging import described_files, final_name, write_rows
from headwater.pipelines.loads.target import Writing

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["FileTarget"]

_ATTEMPT_DIGITS = 8


class FileTarget:
    """See `Target`."""

    def __init__(self, records: LoadRecords, form: str) -> None:
        self._records = records
        self._files = records.files
        self._target = records.target
        self._format = form
        self._last: Manifest | None = None

    def refresh(self, spark: SparkSession) -> TargetState:  # noqa: ARG002 - a target's
        """Carry out a commit that was not."""
        sequence = self._records.last_sequence()
        self._last = None
        if sequence:
            commit = self._records.commit(sequence)
            if not self._records.has_manifest(commit.manifest):
                self._carry_out(commit)
            self._last = commit.manifest
        return TargetState() if self._last is None else TargetState(self._last.coverage, self._last.chain_ends)

    def write(self, spark: SparkSession, writing: Writing) -> Manifest:
        """Write the files, commit them, and put them into place."""
        plan, last = writing.plan, self._last
        schema = schema_text(writing.rows.schema.json())
        if last is not None:
            check_schema(last.schema, schema, merge=writing.merge_schema)
            if tuple(writing.partition_by) != last.partition_by:
                had = ", ".join(last.partition_by) or "none"
                raise LoadError(f"the target has the partition columns {had}: give the same by --partition-by")
        attempt = uuid.uuid4().hex[:_ATTEMPT_DIGITS]
        relative = self._records.staged(attempt)
        folder = join(self._target, relative)
        rows, counts = counted(writing.rows, writing.late_before_ms)
        try:
            names = write_rows(rows, self._format, self._files, folder, writing.partition_by)
            number, refused, late = counts()
            staged = described_files(spark, self._files, folder, names if number else ())
            files = tuple(LoadedFile(final_name(f.path, plan.id, attempt), f.size, f.sha256) for f in staged)
            before = TargetState() if last is None else TargetState(last.coverage, last.chain_ends)
            manifest = Manifest(
                plan,
                (0 if last is None else last.sequence) + 1,
                self._format,
                number,
                refused,
                schema,
                tuple(writing.partition_by),
                files,
                removed=() if writing.replaced is None else tuple(f.path for f in writing.replaced.files),
                replaces=writing.replaced is not None,
                coverage=joined(before.coverage, plan.covered),
                chain_ends=chain_after(before.chain_ends, plan.covered),
                loaded_at=datetime.now(UTC).isoformat(timespec="seconds"),
                late=late,
            )
            moves = {final.path: join(relative, f.path) for final, f in zip(files, staged, strict=True)}
            writing.before_commit()
            if not self._records.create_commit(Commit(manifest, moves)):
                raise LoadFailed("another load into the target was committed meanwhile: nothing of this one was added")
        except BaseException:
            self._remove(folder)
            raise
        self._carry_out(Commit(manifest, moves))
        self._last = manifest
        # Only now: the number of a driver that was frozen, and may wake up, is taken.
        self._remove(self._records.staged_folder)
        return manifest

    def _carry_out(self, commit: Commit) -> None:
        """Put a commit's files into place. Repeated, it goes on where it ended; two drivers may do it at once."""
        for path in commit.manifest.removed:
            self._files.delete(join(self._target, path))
        for final, staged in commit.moves.items():
            self._move(join(self._target, staged), join(self._target, final))
        self._records.write_manifest(commit.manifest)
        self._files.replace(join(self._target, "_SUCCESS"), b"")

    def _move(self, source: str, target: str) -> None:
        try:
            self._files.rename(source, target)
        except FileExistsError:
            self._files.delete(source)  # an object store's copy, whose source was not deleted any more
        except FileNotFoundError:
            if self._files.entry(target) is None:
                raise LoadFailed(f"{source} is gone, and {target} is not there: somebody removed a file") from None

    def _remove(self, folder: str) -> None:
        try:
            self._files.delete(folder)
        except OSError:
            return  # the next load removes it
