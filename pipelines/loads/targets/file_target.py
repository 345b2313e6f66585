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
from headwater.pipelines.loads.counted_rows import counted
from headwater.pipelines.loads.errors import LoadFailed
from headwater.pipelines.loads.offsets.chain import chain_after
from headwater.pipelines.loads.offsets.planning import TargetState
from headwater.pipelines.loads.offsets.ranges import joined
from headwater.pipelines.loads.targets.manifest import LoadedFile, Manifest
from headwater.pipelines.loads.targets.records import Commit, LoadRecords
from headwater.pipelines.loads.targets.schemas import check_schema, merged_schema, schema_text
from headwater.pipelines.loads.targets.staging import described_files, final_name, write_rows
from headwater.pipelines.loads.targets.target import Writing

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
        self._left_over: list[str] = []

    def refresh(self, spark: SparkSession) -> TargetState:  # noqa: ARG002 - a target's
        """Carry out a commit that was not."""
        # Their drivers have lost the lock. A driver that comes later stages elsewhere, and is not among these.
        self._left_over = [entry.name for entry in self._files.list(self._records.staged_folder)]
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
        attempt = uuid.uuid4().hex[:_ATTEMPT_DIGITS]
        relative = self._records.staged(attempt)
        folder = join(self._target, relative)
        rows, counts = counted(writing.rows, writing.late_before_ms)
        try:
            names = write_rows(rows, self._format, self._files, folder, writing.partition_by)
            number, refused, late = counts()
            staged = described_files(spark, self._files, folder, names if number else ())
            if number and not staged:
                raise LoadFailed(f"{number:,} rows were written below {folder}, and their files are not found there")
            files = tuple(LoadedFile(final_name(f.path, plan.id, attempt), f.size, f.sha256) for f in staged)
            before = TargetState() if last is None else TargetState(last.coverage, last.chain_ends)
            manifest = Manifest(
                plan,
                (0 if last is None else last.sequence) + 1,
                self._format,
                number,
                refused,
                schema if last is None else merged_schema(last.schema, schema),
                tuple(writing.partition_by),
                files,
                removed=() if writing.replaced is None else tuple(f.path for f in writing.replaced.files),
                replaces=writing.replaced is not None,
                coverage=joined(before.coverage, plan.covered),
                chain_ends=chain_after(before, plan.covered),
                loaded_at=datetime.now(UTC).isoformat(timespec="seconds"),
                late=late,
            )
            moves = {final.path: join(relative, f.path) for final, f in zip(files, staged, strict=True)}
            commit = Commit(manifest, moves)
            self._records.require_size(commit)
            writing.before_commit()
        except BaseException:
            self._remove(folder)
            raise
        # An error from here on says nothing of the commit, whose answer may be lost: the files stay.
        if not self._records.create_commit(commit) and self._records.commit(manifest.sequence) != commit:
            self._remove(folder)
            raise LoadFailed("another load into the target was committed meanwhile: nothing of this one was added")
        self._carry_out(commit)
        self._last = manifest
        # Only now: the number that a frozen driver of these would have taken is taken.
        for name in (*self._left_over, attempt):
            self._remove(join(self._records.staged_folder, name))
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
