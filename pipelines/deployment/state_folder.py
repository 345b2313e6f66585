"""A pipeline's checkpoints and records: in its state folder on this machine, or on a file system that machines share.

`<root>/<pipeline>/<stage>/` holds:
  checkpoint/          Spark's own
  checkpoint.<n>/      the stage's earlier checkpoints, set aside by a reset or a replay; never removed by Headwater
  deployed.json        the stage at the last start of its query (`stage_record`); deployed.<n>.json likewise
  start.json           the stage's start offsets in one epoch of its checkpoint, if not the file's
  last_error.json      the error of its last run, until a run succeeds

`<root>/<pipeline>/lock_id` holds the id by which runs of the pipeline, on whatever machine, find one another.

The epoch of a stage's checkpoint is the number under which it will be set aside. A moved checkpoint keeps the id that
Spark assigned, and a new checkpoint gets another id, by which the exactly-once sink and Delta distinguish their
batches.
"""

from __future__ import annotations

import contextlib
import json
import os
import uuid
from typing import Any, Final

from headwater.pipelines.definition.plan import checkpoint_folder
from headwater.pipelines.deployment.checkpoint_progress import CheckpointProgress, TopicOffsets
from headwater.pipelines.deployment.stage_record import RecordError, StageRecord
from headwater.pipelines.file_systems.file_system import FileSystem, FileSystemError, join
from headwater.pipelines.file_systems.local import LocalFiles, local_path
from headwater.pipelines.file_systems.opening import file_system, is_local, qualified_url
from headwater.pipelines.file_systems.options import FileSystemOptions

__all__ = ["StageFolder", "StateFolder"]

_OFFSET_LOG_HEAD: Final = 2  # lines before the sources' lines: the version, and Spark's metadata of the batch


class StageFolder:
    """The files of one stage. Methods raise FileSystemError for a file system that cannot be used."""

    def __init__(self, root: str, pipeline: str, stage: str, files: FileSystem) -> None:
        self.stage = stage
        self.checkpoint = join(root, checkpoint_folder(pipeline, stage))
        #: The checkpoint's location to Spark, whose default file system may be another than the local one.
        self.location = f"file:{self.checkpoint}" if is_local(root) else self.checkpoint
        self.path = join(root, pipeline, stage)
        self._files = files

    # -- the checkpoint ----------------------------------------------------------------------------------------------

    @property
    def exists(self) -> bool:
        """Whether the stage has ever run."""
        return self._files.entry(self.path) is not None

    @property
    def has_checkpoint(self) -> bool:
        """Whether a micro-batch has been planned: an empty checkpoint imposes no restrictions."""
        return self.progress().planned is not None

    @property
    def keeps_state(self) -> bool:
        """Whether Spark has stored state for a completed batch."""
        found = self._files.entry(join(self.checkpoint, "state"))
        return found is not None and found.is_folder

    def checkpoint_id(self) -> str:
        """Return the id that Spark assigned to the checkpoint; it distinguishes its batches from another's."""
        text = self._files.read(join(self.checkpoint, "metadata"))
        if text is None:
            raise FileSystemError(f"the checkpoint {self.checkpoint} has no metadata: it was removed during the run")
        return str(json.loads(text)["id"])

    def progress(self) -> CheckpointProgress:
        """The checkpoint's progress. Files that Spark is still writing are ignored."""
        planned, done = (_last(self._files, join(self.checkpoint, name)) for name in ("offsets", "commits"))
        if planned is None:
            return CheckpointProgress()
        head, planned_offsets = self._offsets(planned)
        done_at = None
        offsets: tuple[Any, ...] = ()
        if done is not None:
            offsets = planned_offsets if done == planned else self._offsets(done)[1]
            commit = self._files.entry(join(self.checkpoint, "commits", str(done)))
            done_at = None if commit is None else commit.modified_at
        watermark_ms, conf = head.get("batchWatermarkMs", 0), head.get("conf", {})
        return CheckpointProgress(
            planned, done, done_at, offsets, planned_offsets, int(watermark_ms), {k: str(v) for k, v in conf.items()}
        )

    def _offsets(self, batch: int) -> tuple[dict[str, Any], tuple[Any, ...]]:
        text = self._files.read(join(self.checkpoint, "offsets", str(batch)))
        lines = [] if text is None else text.decode(errors="replace").splitlines()
        head = _parsed(lines[1]) if len(lines) > 1 else {}
        sources = tuple(_parsed(line) for line in lines[_OFFSET_LOG_HEAD:])
        return (head if isinstance(head, dict) else {}), sources

    # -- epochs ------------------------------------------------------------------------------------------------------

    @property
    def epoch(self) -> int:
        """The number of the current checkpoint: 1 for the first."""
        return 1 + max((_epoch_of(entry.name) for entry in self._files.list(self.path)), default=0)

    def set_aside(self, start: TopicOffsets | None = None) -> str | None:
        """Move the checkpoint aside, so that the stage starts anew: at `start`, else where its file says.

        Returns the checkpoint's new path, None if there was no checkpoint. The caller holds the run's lock. A crash
        leaves the stage either unchanged or restarted at `start`: a single rename decides.
        """
        epoch = self.epoch
        exists = self._files.entry(self.checkpoint) is not None
        if start is None:
            self._files.delete(join(self.path, "start.json"))
        else:
            offsets = {topic: {str(p): offset for p, offset in parts.items()} for topic, parts in start.items()}
            self._write("start.json", {"epoch": epoch + 1 if exists else epoch, "offsets": offsets})
        self._files.delete(join(self.path, "last_error.json"))
        if not exists:
            return None
        target = f"{self.checkpoint}.{epoch}"
        self._files.rename(self.checkpoint, target)
        with contextlib.suppress(FileNotFoundError):
            self._files.rename(join(self.path, "deployed.json"), join(self.path, f"deployed.{epoch}.json"))
        return target

    def start(self) -> dict[str, dict[int, int]] | None:
        """The start offsets of the current epoch, if a replay has set them."""
        found = self._read("start.json")
        if not isinstance(found, dict) or found.get("epoch") != self.epoch:
            return None
        return {topic: {int(p): int(at) for p, at in parts.items()} for topic, parts in found["offsets"].items()}

    # -- what a run notes --------------------------------------------------------------------------------------------

    def deployed(self) -> StageRecord | None:
        """The stage's record at its last start; None if missing or unreadable."""
        text = self._files.read(join(self.path, "deployed.json"))
        if text is None:
            return None
        try:
            return StageRecord.decode(text.decode())
        except (UnicodeDecodeError, RecordError):
            return None

    def note_deployed(self, record: StageRecord | None) -> None:
        """Store the stage's current record; None removes it."""
        if record is None:
            self._files.delete(join(self.path, "deployed.json"))
        else:
            self._files.replace(join(self.path, "deployed.json"), record.encode().encode())

    def last_error(self) -> dict[str, Any] | None:
        """The failure of the last run: `at` (seconds since 1970) and `error`."""
        found = self._read("last_error.json")
        return found if isinstance(found, dict) else None

    def note_error(self, error: str | None, at: float) -> None:
        """Store the error of a run; None after a successful run."""
        if error is None:
            self._files.delete(join(self.path, "last_error.json"))
        else:
            self._write("last_error.json", {"at": at, "error": error})

    def _read(self, name: str) -> Any:
        text = self._files.read(join(self.path, name))
        return None if text is None else _parsed(text.decode(errors="replace"))

    def _write(self, name: str, value: Any) -> None:
        self._files.replace(join(self.path, name), (json.dumps(value, ensure_ascii=False) + "\n").encode())


class StateFolder:
    """The state of one pipeline below `root`: a folder of this machine, or a URL."""

    def __init__(self, root: str, pipeline: str, options: FileSystemOptions | None = None) -> None:
        """Raises FileSystemError for a URL that is not supported."""
        self.pipeline = pipeline
        self.is_local = is_local(root)
        self.files: FileSystem = LocalFiles() if self.is_local else file_system(root, options)
        self.root = os.path.abspath(local_path(root)) if self.is_local else qualified_url(root, options)
        self.path = join(self.root, pipeline)

    def stage(self, name: str) -> StageFolder:
        """The files of a stage, which may not exist."""
        return StageFolder(self.root, self.pipeline, name, self.files)

    def stages(self) -> list[str]:
        """The stages that have run."""
        return [name for name in self.folders() if self.files.entry(join(self.path, name, "checkpoint")) is not None]

    def folders(self) -> list[str]:
        """The stages of which anything is kept. Names with a dot are no stages': they were set aside."""
        return [entry.name for entry in self.files.list(self.path) if entry.is_folder and "." not in entry.name]

    def lock_id(self) -> str:
        """Return the id of the pipeline's runs, which is made once; a copy of the state keeps it."""
        path = join(self.path, "lock_id")
        if (found := self.files.read(path)) is None:
            self.files.create(path, f"{uuid.uuid4()}\n".encode())  # of several machines, one makes it
            found = self.files.read(path)
        try:
            return str(uuid.UUID((found or b"").decode().strip()))
        except ValueError:
            raise FileSystemError(
                f"{path} holds no id of a pipeline's runs: it was changed; restore it, or remove it while no run of "
                f"{self.pipeline} is alive"
            ) from None

    @staticmethod
    def pipelines(state: str) -> list[str]:
        """The pipelines that have run with this state folder of this machine."""
        files = LocalFiles()
        return [entry.name for entry in files.list(state) if files.entry(join(state, entry.name, "lock")) is not None]

    @staticmethod
    def pipelines_at(checkpoints: str, options: FileSystemOptions | None = None) -> list[str]:
        """The pipelines whose checkpoints are at a URL."""
        files = file_system(checkpoints, options)
        names = [entry.name for entry in files.list(checkpoints) if entry.is_folder]
        return [name for name in names if files.entry(join(checkpoints, name, "lock_id")) is not None]


def _last(files: FileSystem, folder: str) -> int | None:
    return max((int(entry.name) for entry in files.list(folder) if entry.name.isdecimal()), default=None)


def _epoch_of(name: str) -> int:
    number = name.removeprefix("checkpoint.")
    return int(number) if number != name and number.isdecimal() else 0


def _parsed(line: str) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        return None  # a source without data yet (`-`), or with offsets other than JSON
