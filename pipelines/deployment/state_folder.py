"""The files of a pipeline's state folder, read and moved without Spark.

`<state>/<pipeline>/<stage>/` holds:
  checkpoint/          Spark's own
  checkpoint.<n>/      the stage's earlier checkpoints, set aside by a reset or a replay; never removed by Headwater
  deployed.json        the stage at the last start of its query (`stage_record`); deployed.<n>.json likewise
  start.json           the stage's start offsets in one epoch of its checkpoint, if not the file's
  last_error.json      the error of its last run, until a run succeeds

The epoch of a stage's checkpoint is the number under which it will be set aside. A moved checkpoint keeps the id that
Spark assigned, and a new checkpoint gets another id, by which the exactly-once sink and Delta distinguish their
batches.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from headwater.pipelines.definition.plan import checkpoint_folder
from headwater.pipelines.deployment.stage_record import RecordError, StageRecord

__all__ = ["CheckpointProgress", "StageFolder", "StateFolder", "TopicOffsets"]

TopicOffsets = Mapping[str, Mapping[int, int]]
"""The next offset of each partition, by topic."""

_OFFSET_LOG_HEAD: Final = 2  # lines before the sources' lines: the version, and Spark's metadata of the batch


@dataclass(frozen=True, slots=True)
class CheckpointProgress:
    """A checkpoint's progress: the last completed micro-batch, and the planned micro-batch with its end offsets.

    `offsets` are the sources' offsets after the last completed batch, in Spark's form.
    """

    planned: int | None = None
    done: int | None = None
    done_at: float | None = None
    offsets: tuple[Any, ...] = ()
    planned_offsets: tuple[Any, ...] = ()
    watermark_ms: int = 0
    conf: Mapping[str, str] = field(default_factory=dict)

    def topics(self) -> dict[str, dict[int, int]]:
        """The offsets of topics."""
        return topics_of(self.offsets)

    def planned_topics(self) -> frozenset[str]:
        """The topics of any batch, planned or done."""
        return frozenset(topics_of(self.planned_offsets)) | frozenset(topics_of(self.offsets))


def topics_of(offsets: tuple[Any, ...]) -> dict[str, dict[int, int]]:
    """The offsets of topics in Spark's offset log; for a topic that is read twice, the lower offset.

    >>> topics_of(({"flights": {"0": 5, "1": 7}}, {"reservoirId": "x"}, None, 17))
    {'flights': {0: 5, 1: 7}}
    """
    found: dict[str, dict[int, int]] = {}
    for source in offsets:
        if not isinstance(source, dict) or not all(isinstance(parts, dict) for parts in source.values()):
            continue
        for topic, partitions in source.items():
            known = found.setdefault(topic, {})
            for partition, offset in partitions.items():
                known[int(partition)] = min(int(offset), known.get(int(partition), int(offset)))
    return found


class StageFolder:
    """The files of one stage."""

    def __init__(self, state: str, pipeline: str, stage: str) -> None:
        self.stage = stage
        self.checkpoint = os.path.abspath(os.path.join(state, checkpoint_folder(pipeline, stage)))
        self.path = os.path.dirname(self.checkpoint)

    # -- the checkpoint ----------------------------------------------------------------------------------------------

    @property
    def has_checkpoint(self) -> bool:
        """Whether a micro-batch has been planned: an empty checkpoint imposes no restrictions."""
        return self.progress().planned is not None

    @property
    def keeps_state(self) -> bool:
        """Whether Spark has stored state for a completed batch."""
        return os.path.isdir(os.path.join(self.checkpoint, "state"))

    def progress(self) -> CheckpointProgress:
        """The checkpoint's progress. Files that Spark is still writing are ignored."""
        planned, done = (_last(os.path.join(self.checkpoint, name)) for name in ("offsets", "commits"))
        if planned is None:
            return CheckpointProgress()
        head, planned_offsets = self._offsets(planned)
        done_at = None
        offsets: tuple[Any, ...] = ()
        if done is not None:
            offsets = planned_offsets if done == planned else self._offsets(done)[1]
            with contextlib.suppress(OSError):
                done_at = os.stat(os.path.join(self.checkpoint, "commits", str(done))).st_mtime
        watermark_ms, conf = head.get("batchWatermarkMs", 0), head.get("conf", {})
        return CheckpointProgress(
            planned, done, done_at, offsets, planned_offsets, int(watermark_ms), {k: str(v) for k, v in conf.items()}
        )

    def _offsets(self, batch: int) -> tuple[dict[str, Any], tuple[Any, ...]]:
        try:
            with open(os.path.join(self.checkpoint, "offsets", str(batch)), encoding="utf-8") as file:
                lines = file.read().splitlines()
        except OSError:
            return {}, ()
        head = _parsed(lines[1]) if len(lines) > 1 else {}
        sources = tuple(_parsed(line) for line in lines[_OFFSET_LOG_HEAD:])
        return (head if isinstance(head, dict) else {}), sources

    # -- epochs ------------------------------------------------------------------------------------------------------

    @property
    def epoch(self) -> int:
        """The number of the current checkpoint: 1 for the first."""
        return 1 + max((_epoch_of(name) for name in _listed(self.path)), default=0)

    def set_aside(self, start: TopicOffsets | None = None) -> str | None:
        """Move the checkpoint aside, so that the stage starts anew: at `start`, else where its file says.

        Returns the checkpoint's new path, None if there was no checkpoint. The caller holds the run's lock. A crash
        leaves the stage either unchanged or restarted at `start`: a single rename decides.
        """
        epoch = self.epoch
        exists = os.path.isdir(self.checkpoint)
        os.makedirs(self.path, exist_ok=True)
        if start is None:
            _remove(os.path.join(self.path, "start.json"))
        else:
            offsets = {topic: {str(p): offset for p, offset in parts.items()} for topic, parts in start.items()}
            self._write("start.json", {"epoch": epoch + 1 if exists else epoch, "offsets": offsets})
        _remove(os.path.join(self.path, "last_error.json"))
        if not exists:
            return None
        target = f"{self.checkpoint}.{epoch}"
        os.rename(self.checkpoint, target)
        with contextlib.suppress(FileNotFoundError):
            os.rename(os.path.join(self.path, "deployed.json"), os.path.join(self.path, f"deployed.{epoch}.json"))
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
        try:
            with open(os.path.join(self.path, "deployed.json"), encoding="utf-8") as file:
                return StageRecord.decode(file.read())
        except (OSError, UnicodeDecodeError, RecordError):
            return None

    def note_deployed(self, record: StageRecord | None) -> None:
        """Store the stage's current record; None removes it."""
        if record is None:
            _remove(os.path.join(self.path, "deployed.json"))
        else:
            self._write_text("deployed.json", record.encode())

    def last_error(self) -> dict[str, Any] | None:
        """The failure of the last run: `at` (seconds since 1970) and `error`."""
        found = self._read("last_error.json")
        return found if isinstance(found, dict) else None

    def note_error(self, error: str | None, at: float) -> None:
        """Store the error of a run; None after a successful run."""
        if error is None:
            _remove(os.path.join(self.path, "last_error.json"))
        else:
            self._write("last_error.json", {"at": at, "error": error})

    def _read(self, name: str) -> Any:
        try:
            with open(os.path.join(self.path, name), encoding="utf-8") as file:
                return _parsed(file.read())
        except (OSError, UnicodeDecodeError):
            return None

    def _write(self, name: str, value: Any) -> None:
        self._write_text(name, json.dumps(value, ensure_ascii=False) + "\n")

    def _write_text(self, name: str, text: str) -> None:
        """Write atomically: a reader never sees a partial file."""
        path = os.path.join(self.path, name)
        os.makedirs(self.path, exist_ok=True)
        with open(f"{path}.new", "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(f"{path}.new", path)


class StateFolder:
    """The state of one pipeline."""

    def __init__(self, state: str, pipeline: str) -> None:
        self.pipeline = pipeline
        self.path = os.path.join(state, pipeline)
        self._state = state

    def stage(self, name: str) -> StageFolder:
        """The files of a stage, which may not exist."""
        return StageFolder(self._state, self.pipeline, name)

    def stages(self) -> list[str]:
        """The stages that have run."""
        return [name for name in _listed(self.path) if os.path.isdir(os.path.join(self.path, name, "checkpoint"))]

    @staticmethod
    def pipelines(state: str) -> list[str]:
        """The pipelines that have run with this state folder."""
        return [name for name in _listed(state) if os.path.isfile(os.path.join(state, name, "lock"))]


def _listed(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def _last(folder: str) -> int | None:
    return max((int(name) for name in _listed(folder) if name.isdecimal()), default=None)


def _epoch_of(name: str) -> int:
    number = name.removeprefix("checkpoint.")
    return int(number) if number != name and number.isdecimal() else 0


def _parsed(line: str) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        return None  # a source without data yet (`-`), or with offsets other than JSON


def _remove(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.remove(path)
