"""A pipeline compared with its deployed stages: the first part of a run, under its lock.

A checkpoint that does not fit is refused, with the reason and a remedy, before anything is modified; a stage in `reset`
gets a new checkpoint; started stages are recorded for the next run.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from headwater.pipelines.definition import Loaded, Stage, TopicSource
from headwater.pipelines.deployment.changes import Change, Deployed, Effect, changes_of_pipeline
from headwater.pipelines.deployment.checkpoint_progress import TopicOffsets
from headwater.pipelines.deployment.imported_code import hash_with_imports
from headwater.pipelines.deployment.stage_record import (
    SHUFFLE_PARTITIONS,
    StageRecord,
    code_files,
    imports_of,
    record_of,
    schema_files,
)
from headwater.pipelines.deployment.state_folder import StageFolder, StateFolder
from headwater.pipelines.errors import PipelineError, Problem, nearest
from headwater.pipelines.file_systems.file_system import FileSystemError
from headwater.pipelines.file_systems.options import FileSystemOptions
from headwater.pipelines.monitoring.stage_state import StageState, State

if TYPE_CHECKING:
    from headwater.pipelines.monitoring.progress import StageProgress
    from headwater.pipelines.monitoring.watching import RunInfo, RunWatch

__all__ = ["Deployment"]

logger = logging.getLogger(__name__)


class Deployment:
    """A pipeline's stages in its state folder, and the differences from the file."""

    def __init__(
        self,
        loaded: Loaded,
        root: str,
        spark_conf: Mapping[str, str] | None = None,
        options: FileSystemOptions | None = None,
    ) -> None:
        """`root` is the state folder or the checkpoints' URL; `spark_conf` are settings that override the file's.

        Raises FileSystemError for a URL that is not supported.
        """
        self.loaded = loaded
        self.folder = StateFolder(root, loaded.pipeline.pipeline, options)
        given = {name: str(value) for name, value in loaded.pipeline.spark.items()} | dict(spark_conf or {})
        partitions = given.get(SHUFFLE_PARTITIONS)
        self._records = {
            stage.name: record_of(loaded, stage, _code(loaded, stage), partitions, _schemas(loaded, stage))
            for stage in loaded.pipeline.stages
        }
        self._before: dict[str, tuple[StageRecord | None, int | None]] = {}

    def stage(self, name: str) -> StageFolder:
        """The files of a stage."""
        return self.folder.stage(name)

    def changes(self) -> list[Change]:
        """Every difference between the file and the deployed stages; none for stages that never ran."""
        deployed = {}
        for name in dict.fromkeys((*self._records, *self.folder.stages())):
            folder = self.stage(name)
            progress = folder.progress()
            record = folder.deployed()
            if record is not None:
                kept = progress.conf.get(SHUFFLE_PARTITIONS)
                is_stateful = folder.keeps_state if progress.done is not None else None
                record = dataclasses.replace(record, shuffle_partitions=kept, is_stateful=is_stateful)
            waits = progress.planned if progress.planned != progress.done else None
            deployed[name] = Deployed(progress.planned is not None, record, progress.planned_topics(), waits)
        return changes_of_pipeline(self._records, deployed)

    def take_ids(self, cluster_id: str | None, topic_ids: Mapping[str, str]) -> None:
        """Record the brokers' ids of the topics whose offsets a checkpoint holds.

        Topics of tables have no recorded offsets: they are read whole. None (unreachable brokers) keeps the known ids.
        """
        if cluster_id is None:
            return
        for stage in self.loaded.pipeline.stages:
            read = [source.topic for source in stage.topic_inputs]
            ids = {f"topic {name}": topic_ids[name] for name in read if name in topic_ids}
            if read:
                ids["cluster"] = cluster_id
            self._records[stage.name] = dataclasses.replace(self._records[stage.name], ids=ids)

    def prepare(self, stages: Sequence[str], reset: Iterable[str]) -> tuple[Loaded, list[str]]:
        """Reset the stages in `reset`; returns the pipeline with the start offsets of replays, and the actions taken.

        The caller holds the lock. Raises PipelineError, before anything is moved, if a checkpoint of `stages` does not
        fit, or if a stage to reset does not exist.
        """
        chosen = tuple(dict.fromkeys(reset))
        for name in chosen:
            if name not in stages:
                known = nearest(name, list(stages))
                raise PipelineError([self.loaded.problem(("stages",), f"--reset: no stage '{name}' is run", known)])
        unfit = [
            change
            for change in self.changes()
            if change.effect is Effect.NEEDS_RESET and change.stage in stages and change.stage not in chosen
        ]
        if unfit:
            raise PipelineError([self._problem(change) for change in unfit])
        done = []
        for name in chosen:
            moved = self.stage(name).set_aside()
            kept = f"; its checkpoint was moved to {moved}" if moved else ": it had no checkpoint"
            done.append(f"stage {name} starts anew{kept}")
        starts = {name: start for name in self._records if (start := self.stage(name).start()) is not None}
        return started_at(self.loaded, starts), done

    def _problem(self, change: Change) -> Problem:
        hint = (
            f"`--reset {change.stage}` lets it start anew where the file says, and moves the checkpoint away; "
            "or give the stage another name"
        )
        stage = self.loaded.pipeline.stage(change.stage)
        message = f"the checkpoint of stage {change.stage} does not fit: {change.what}: {change.reason}"
        return self.loaded.problem(place(self.loaded, stage, change), message, hint)

    # -- while it runs -----------------------------------------------------------------------------------------------

    def began(self, info: RunInfo, watch: RunWatch) -> None:
        """Called before the stages start (this class is a `watching.RunListener`)."""

    def changed(self, state: StageState, progress: StageProgress | None) -> None:
        """Record a running stage as deployed, or the error of a failed stage.

        While the file system does not answer, a stage's error is lost; its record is stored with a later micro-batch.
        """
        try:
            self._record(state, progress)
        except FileSystemError as error:
            logger.warning("stage %s: its record cannot be written: %s", state.stage, error)

    def _record(self, state: StageState, progress: StageProgress | None) -> None:
        folder = self.stage(state.stage)
        if state.state in (State.FAILED, State.RESTARTING):
            folder.note_error(state.error, time.time())
            record, done = self._before.pop(state.stage, (None, None))
            if record is not None and folder.progress().done == done:
                folder.note_deployed(record)  # Spark may have refused the new stage: the checkpoint is unchanged
        elif (progress is not None or state.state in (State.RUNNING, State.IDLE)) and state.stage not in self._before:
            before, done = folder.deployed(), folder.progress().done
            folder.note_deployed(_with_known_ids(self._records[state.stage], before))
            self._before[state.stage] = (before, done)
            folder.note_error(None, 0.0)

    def ended(self) -> None:
        """Called at the end of the run."""


def _with_known_ids(record: StageRecord, before: StageRecord | None) -> StageRecord:
    """The record, completed with the ids recorded before: unreachable brokers count as unchanged.

    The offsets in the checkpoint belong to the topics whose ids were recorded first.
    """
    if before is None or not before.ids:
        return record
    read = {"cluster", *(f"topic {each['target']}" for each in record.inputs if each["kind"] == "topic")}
    known = {name: value for name, value in before.ids.items() if name in read}
    return dataclasses.replace(record, ids=known | dict(record.ids or {}))


def started_at(loaded: Loaded, starts: Mapping[str, TopicOffsets]) -> Loaded:
    """The pipeline with these start offsets of its stages' topics in place of the file's."""
    if not starts:
        return loaded
    stages = []
    for stage in loaded.pipeline.stages:
        start = starts.get(stage.name, {})
        inputs = []
        for source in stage.inputs:
            moved = start.get(source.topic) if isinstance(source, TopicSource) else None
            inputs.append(source if moved is None else source.model_copy(update={"starting_offsets": dict(moved)}))
        stages.append(stage.model_copy(update={"inputs": tuple(inputs)}))
    pipeline = loaded.pipeline.model_copy(update={"stages": tuple(stages)})
    return dataclasses.replace(loaded, pipeline=pipeline)


def place(loaded: Loaded, stage: Stage, change: Change) -> tuple[str | int, ...]:
    """Path of a change in the file."""
    if not change.place:
        return loaded.stage_loc(stage)
    field, *rest = change.place
    if field == "from" and rest:
        return loaded.input_loc(stage, int(rest[0]), *rest[1:])
    if field == "to" and rest:
        return loaded.sink_loc(stage, int(rest[0]), *rest[1:])
    if field in ("steps", "sql"):
        field = "sql" if stage.sql is not None else "python" if stage.python is not None else "steps"
    return loaded.stage_loc(stage, field)


def _code(loaded: Loaded, stage: Stage) -> dict[str, str]:
    """Hashes of the stage's Python files, each followed by the hash of its imported modules."""
    found = {}
    for path in code_files(stage):
        try:
            own, imported = hash_with_imports(loaded.path(path))
        except OSError:
            continue  # reported where the file is needed
        found[path] = own
        found[imports_of(path)] = imported
    return found


def _schemas(loaded: Loaded, stage: Stage) -> dict[str, str]:
    """Hashes of the schema files that define the stage's columns."""
    found = {}
    for path in schema_files(loaded, stage):
        try:
            with open(loaded.path(path), "rb") as file:
                found[path] = schema_hash(file.read())
        except OSError:
            continue  # as above
    return found


def schema_hash(text: bytes) -> str:
    """A hash of a schema's text that the layout of JSON does not change.

    >>> schema_hash(b'{"type": "object"}') == schema_hash(b'{ "type":"object" }')
    True
    """
    with contextlib.suppress(ValueError, RecursionError):
        text = json.dumps(json.loads(text)).encode()
    return hashlib.sha256(text).hexdigest()[:16]
