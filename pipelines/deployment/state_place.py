"""Where a pipeline's checkpoints are: in the local state folder, or at a URL; and their move from one to the other.

The local state folder remembers the place in `<state>/<pipeline>/checkpoints.json`, so that a run that names another
place is refused: it would start anew in silence. A move copies every file of the stages, compares the copies, and then
sets the originals aside; `<target>/<pipeline>/moving.json` marks a target that is not complete. Whoever calls holds the
run's lock.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import re
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from headwater.pipelines.deployment.state_folder import StateFolder
from headwater.pipelines.errors import PipelineFailed
from headwater.pipelines.file_systems.file_system import Entry, FileSystem, FileSystemError, join, walk
from headwater.pipelines.file_systems.opening import scheme_of
from headwater.pipelines.file_systems.options import FileSystemOptions

__all__ = ["CheckpointPlace", "decide", "known_place", "require_supported", "settle"]

_MARK: Final = "checkpoints.json"
_MOVING: Final = "moving.json"
_CHUNK_BYTES: Final = 1 << 20
#: Hadoop's checksum of a file on a local disk: it would not fit a file that is written elsewhere later.
_CHECKSUM_FILE: Final = re.compile(r"(^|/)\.[^/]+\.crc$")
_INCREMENT: Final = re.compile(rb'/headwater/(input-\d+/increments/[^"]+)"')
#: Commits there are single by renames that replace nothing.
_SCHEMES: Final = ("", "file", "hdfs")


@dataclass(frozen=True, slots=True)
class CheckpointPlace:
    """A place of checkpoints, and what is there. `lock_id` is '' if the pipeline has never run there."""

    root: str
    stages: tuple[str, ...] = ()
    lock_id: str = ""
    moving_from: str = ""


def require_supported(checkpoints: str) -> None:
    """Raise PipelineFailed for a place whose file system has no rename that replaces nothing."""
    scheme = scheme_of(checkpoints)
    if scheme not in _SCHEMES:
        raise PipelineFailed(
            f"checkpoints cannot be kept at {checkpoints}: a commit there could replace another; give a folder of this "
            "machine or an hdfs:// URL (docs/how-to/hdfs_and_object_stores.md)"
        )


def decide(pipeline: str, before: CheckpointPlace, wanted: CheckpointPlace, *, move: bool) -> bool:
    """Whether the state is moved from `before` to `wanted`. Raises PipelineFailed if that, or a new start, is refused.

    >>> local, lake = CheckpointPlace("/state", ("clean",)), CheckpointPlace("hdfs:///lake")
    >>> decide("flights", local, local, move=False), decide("flights", local, lake, move=True)
    (False, True)
    >>> decide("flights", CheckpointPlace("/state"), lake, move=False)
    False
    """
    is_same = before.root == wanted.root or bool(before.lock_id and before.lock_id == wanted.lock_id)
    is_begun = bool(wanted.moving_from)
    if is_begun and wanted.moving_from != _name_of(before.root):
        raise PipelineFailed(
            f"{wanted.root} has an incomplete copy of {pipeline}'s state: a move from {wanted.moving_from} was cut "
            "short; repeat it there with --move"
        )
    if is_begun and not move:
        raise PipelineFailed(f"the move of {pipeline}'s state to {wanted.root} was cut short; repeat it with --move")
    if is_begun:
        return True
    if is_same or not before.stages:
        return False
    stages = ", ".join(before.stages)
    if wanted.stages:
        raise PipelineFailed(
            f"{pipeline} has state in {before.root} ({stages}) and at {wanted.root} ({', '.join(wanted.stages)}): move "
            "one of them away, or run it with the place that it ran with"
        )
    if not move:
        raise PipelineFailed(
            f"the state of {pipeline} is in {before.root} ({stages}), and a run with checkpoints in {wanted.root} "
            "would start anew; --move takes the state along"
        )
    return True


def known_place(state: str, pipeline: str) -> str | None:
    """Return the URL at which the pipeline's checkpoints were kept last; None if in the local state folder."""
    return _mark(StateFolder(state, pipeline)).checkpoints or None


def settle(
    state: str,
    checkpoints: str,
    pipeline: str,
    options: FileSystemOptions,
    *,
    move: bool,
    say: Callable[[str], None],
) -> None:
    """Make sure that a run with checkpoints at a URL ('': in the local state folder) continues the last one.

    `move` takes the state along from its former place. Raises PipelineFailed, before anything is changed, if the run
    would start anew although there is state.
    """
    require_supported(checkpoints)
    local = StateFolder(state, pipeline)
    wanted = StateFolder(checkpoints, pipeline, options) if checkpoints else local
    mark = _mark(local)
    if mark.moving_to and not (move and mark.moving_to == wanted.root):
        where = f"--checkpoints {mark.moving_to} " if mark.moving_to != local.root else ""
        raise PipelineFailed(
            f"the move of {pipeline}'s state to {mark.moving_to} was cut short; repeat it with {where}--move"
        )
    before = StateFolder(mark.checkpoints, pipeline, options) if mark.checkpoints else local
    found = CheckpointPlace(before.root, tuple(before.folders()), mark.lock_id)
    there = _place(wanted)
    if mark.lock_id and not mark.moving_to and before.root == wanted.root and there.lock_id != mark.lock_id:
        raise PipelineFailed(
            f"the state of {pipeline} is no longer at {wanted.root}: another machine has moved it; run with the place "
            f"that it has now, or remove {join(local.path, _MARK)} to start anew"
        )
    if mark.moving_to or decide(pipeline, found, there, move=move):
        say(f"moving the state of {pipeline} from {before.root} to {wanted.root}")
        aside = mark.aside or join(before.path, f"moved.{_moves(before) + 1}")
        if not mark.moving_to:
            _copy_all(before, wanted)
        # From here on the former place is no whole any more.
        _write_mark(local, dataclasses.replace(mark, moving_to=wanted.root, aside=aside))
        _set_aside(before, aside)
        wanted.files.delete(join(wanted.path, _MOVING))
        say(f"the state of {pipeline} was moved; the former is kept in {aside}")
    if wanted.root == local.root:
        local.files.delete(join(local.path, _MARK))
    elif (now := _Mark(wanted.root, wanted.lock_id())) != mark:
        _write_mark(local, now)


def _place(folder: StateFolder) -> CheckpointPlace:
    lock_id = folder.files.read(join(folder.path, "lock_id"))
    moving = folder.files.read(join(folder.path, _MOVING))
    return CheckpointPlace(
        folder.root,
        tuple(folder.folders()),
        "" if lock_id is None else lock_id.decode(errors="replace").strip(),
        "" if moving is None else str(json.loads(moving)["from"]),
    )


@dataclass(frozen=True, slots=True)
class _Mark:
    """What the local state folder remembers. `checkpoints` is '' for the state folder itself.

    `moving_to` is the target of a move whose copies are complete, and `aside` the folder that the originals go to.
    """

    checkpoints: str = ""
    lock_id: str = ""
    moving_to: str = ""
    aside: str = ""


def _mark(local: StateFolder) -> _Mark:
    text = local.files.read(join(local.path, _MARK))
    if text is None:
        return _Mark()
    try:
        return _Mark(**{name: str(value) for name, value in json.loads(text).items()})
    except (ValueError, AttributeError, TypeError):
        raise PipelineFailed(
            f"{join(local.path, _MARK)}, which says where the checkpoints of {local.pipeline} are, is damaged: remove "
            "it and run with the right --checkpoints"
        ) from None


def _write_mark(local: StateFolder, mark: _Mark) -> None:
    local.files.replace(join(local.path, _MARK), json.dumps(dataclasses.asdict(mark)).encode())


# -- the move --------------------------------------------------------------------------------------------------------


def _copy_all(source: StateFolder, target: StateFolder) -> None:
    """Copy the stages and the lock's id; a copy that was cut short is completed.

    Raises PipelineFailed, before anything is copied, for a stage that cannot be moved.
    """
    left_out = {stage: _left_out(source, stage) for stage in source.folders()}
    target.files.create(join(target.path, _MOVING), json.dumps({"from": _name_of(source.root)}).encode())
    lock_id = source.files.read(join(source.path, "lock_id"))
    if lock_id is not None:
        target.files.replace(join(target.path, "lock_id"), lock_id)
    wanted = {
        join(stage, name): entry
        for stage, names in left_out.items()
        for name, entry in walk(source.files, join(source.path, stage))
        if name not in names and not _CHECKSUM_FILE.search(name)
    }
    for stage in target.folders():  # the source may have gone on since a copy that was cut short
        for name, _ in list(walk(target.files, target.path, stage)):
            if name not in wanted:
                target.files.delete(join(target.path, name))
    for name, entry in wanted.items():
        _copy(source.files, join(source.path, name), entry, target.files, join(target.path, name))


def _set_aside(source: StateFolder, aside: str) -> None:
    for stage in source.folders():
        source.files.rename(join(source.path, stage), join(aside, stage))
    with contextlib.suppress(FileNotFoundError):
        source.files.rename(join(source.path, "lock_id"), join(aside, "lock_id"))


def _left_out(source: StateFolder, stage: str) -> frozenset[str]:
    """The files of a stage that stay behind: increments of a database's table (`jdbc_feed`) that have been read.

    Spark keeps their paths, and would read them again under another path.
    """
    folder = source.stage(stage)
    checkpoint = join(stage, "checkpoint")
    feeds = [entry.name for entry in source.files.list(join(folder.checkpoint, "headwater"))]
    if not feeds:
        return frozenset()
    progress = folder.progress()
    if progress.planned != progress.done:
        raise PipelineFailed(
            f"stage {stage} has begun micro-batch {progress.planned} with rows of a database, whose files are known by "
            "their place: run the pipeline once where its state is, then move it"
        )
    logged = b"".join(
        source.files.read(join(folder.checkpoint, "sources", name)) or b""
        for name, _ in walk(source.files, join(folder.checkpoint, "sources"))
    )
    read = {each.decode() for each in _INCREMENT.findall(logged)}
    return frozenset(f"{checkpoint}/headwater/{name}".removeprefix(f"{stage}/") for name in read)


def _copy(source: FileSystem, old: str, entry: Entry, target: FileSystem, new: str) -> None:
    """Copy a file unless the copy is there, and read it back."""
    wanted = _digest(source, old)
    there = target.entry(new)
    if there is not None and there.size == entry.size and _digest(target, new) == wanted:
        return
    with source.open(old) as reading, target.writer(new) as writing:
        while chunk := reading.read(_CHUNK_BYTES):
            writing.write(chunk)
    if _digest(target, new) != wanted:
        raise FileSystemError(f"{new} is not what was written there; {old} is unchanged")


def _digest(files: FileSystem, path: str) -> str:
    digest = hashlib.sha256()
    with files.open(path) as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def _moves(folder: StateFolder) -> int:
    """The number of the last move from a folder."""
    names = (entry.name for entry in folder.files.list(folder.path) if entry.name.startswith("moved."))
    return max((int(number) for name in names if (number := name.removeprefix("moved.")).isdecimal()), default=0)


def _name_of(root: str) -> str:
    """Return a root's name on every machine: a path is one of this machine only."""
    return root if scheme_of(root) else f"{socket.gethostname()}:{root}"
