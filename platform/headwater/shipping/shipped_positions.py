"""Positions of shipped files on disk: the file is written, synced and renamed, so a crash leaves a complete file."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from headwater.shipping.file_changes import FileId
from headwater.shipping.followed_file import FilePosition

VERSION: Final = 2
PATHS_VERSION: Final = 1
"""The version that stored positions by path, so a path could have only one."""
FILE_BYTES_MAX: Final = 64 << 20
_FIELDS: Final = tuple(field.name for field in dataclasses.fields(FilePosition))


@dataclasses.dataclass(frozen=True, slots=True)
class KnownFile:
    """The shipped position of a file.

    Attributes:
        path: The path used as the key of its lines.
        done_ns: Time of the last modification, if the file lost its name, was sent to its end and closed.
    """

    path: str
    position: FilePosition
    done_ns: int | None = None


class PositionsError(ValueError):
    """The file of positions is unusable; the message is one line."""


@contextlib.contextmanager
def locked(path: str) -> Iterator[None]:
    """Prevent a second shipper from using the same file of positions.

    Raises:
        PositionsError: another process uses the file, or the folder is not writable.
    """
    try:
        lock = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise PositionsError(f"{path}.lock cannot be made: {error.strerror}") from None
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise PositionsError(f"{path} is used by another process: name another one with --positions") from None
        yield
    finally:
        os.close(lock)


def load_positions(path: str) -> dict[FileId, KnownFile]:
    """Read the known position of each file; empty if the file of positions does not exist yet.

    Raises:
        PositionsError: the file cannot be read, or was not written by `save_positions`.
    """
    try:
        if os.path.getsize(path) > FILE_BYTES_MAX:
            raise PositionsError(f"{path} is larger than {FILE_BYTES_MAX} bytes: is it the file of positions?")
        with open(path, encoding="utf-8") as file:
            document = json.load(file)
        version = document["version"]
        if version == PATHS_VERSION:
            return _by_file(KnownFile(name, _position(fields)) for name, fields in document["files"].items())
        if version != VERSION:
            raise PositionsError(f"{path} has version {version!r}, this release reads {PATHS_VERSION} to {VERSION}")
        return _by_file(_known_file(fields) for fields in document["files"])
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise PositionsError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        if isinstance(error, PositionsError):
            raise
        raise PositionsError(
            f"{path} is not a file of positions; name another one with --positions, or remove it to begin anew"
        ) from None


def save_positions(path: str, files: Iterable[KnownFile]) -> None:
    """Write the positions of all files; `load_positions` keeps their order.

    Raises:
        OSError: the file cannot be written; the previous file remains.
    """
    entries = (
        {"path": known.path, "done_ns": known.done_ns, **{name: getattr(known.position, name) for name in _FIELDS}}
        for known in files
    )
    # A file a line. There may be ten thousand: `json.dump` to a stream takes ten times as long.
    text = f'{{"version": {VERSION}, "files": [\n' + ",\n".join(map(json.dumps, entries)) + "\n]}\n"
    beside = f"{path}.tmp"
    try:
        with open(beside, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        # The half of it that fits on a full disk helps nobody.
        with contextlib.suppress(OSError):
            os.unlink(beside)
        raise
    os.replace(beside, path)
    folder = os.open(os.path.dirname(os.path.abspath(path)), os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _by_file(files: Iterable[KnownFile]) -> dict[FileId, KnownFile]:
    by_file: dict[FileId, KnownFile] = {}
    for known in files:
        other = by_file.get(known.position.file_id)
        # Two paths may have led to one file: from the lesser position on nothing is left out.
        if other is None or known.position.offset < other.position.offset:
            by_file[known.position.file_id] = known
    return by_file


def _known_file(fields: Mapping[str, object]) -> KnownFile:
    path, done_ns = fields["path"], fields["done_ns"]
    if not isinstance(path, str) or not isinstance(done_ns, int | None):
        raise ValueError("not a file")
    position = _position({name: value for name, value in fields.items() if name not in {"path", "done_ns"}})
    return KnownFile(path, position, done_ns)


def _position(fields: Mapping[str, object]) -> FilePosition:
    if set(fields) != set(_FIELDS) or not all(isinstance(value, int) and value >= 0 for value in fields.values()):
        raise ValueError("not a position")
    return FilePosition(**fields)  # type: ignore[arg-type]
