"""How far files have been shipped, on disk: written whole, synced and renamed, so a crash leaves old or new ones."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from typing import Final

from headwater.followed_file import FilePosition

VERSION: Final = 1
FILE_BYTES_MAX: Final = 64 << 20
_FIELDS: Final = {field.name for field in dataclasses.fields(FilePosition)}


class PositionsError(ValueError):
    """The file of positions cannot be used; the message is one line."""


@contextlib.contextmanager
def locked(path: str) -> Iterator[None]:
    """Keep a second shipper from using the same file of positions.

    Raises:
        PositionsError: another process has it, or the folder cannot be written to.
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


def load_positions(path: str) -> dict[str, FilePosition]:
    """Read the positions by path of the shipped file; none where there is no such file yet.

    Raises:
        PositionsError: it cannot be read, or is not what `save_positions` writes.
    """
    try:
        if os.path.getsize(path) > FILE_BYTES_MAX:
            raise PositionsError(f"{path} is larger than {FILE_BYTES_MAX} bytes: is it the file of positions?")
        with open(path, encoding="utf-8") as file:
            document = json.load(file)
        if document["version"] != VERSION:
            raise PositionsError(f"{path} has version {document['version']!r}, this release reads {VERSION}")
        return {name: _position(fields) for name, fields in document["files"].items()}
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


def save_positions(path: str, positions: Mapping[str, FilePosition]) -> None:
    """Write all positions.

    Raises:
        OSError: they cannot be written; the old ones are still there.
    """
    document = {
        "version": VERSION,
        "files": {name: dataclasses.asdict(position) for name, position in sorted(positions.items())},
    }
    beside = f"{path}.tmp"
    with open(beside, "w", encoding="utf-8") as file:
        json.dump(document, file, indent=1)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    os.replace(beside, path)
    folder = os.open(os.path.dirname(os.path.abspath(path)), os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _position(fields: Mapping[str, object]) -> FilePosition:
    if set(fields) != _FIELDS or not all(isinstance(value, int) and value >= 0 for value in fields.values()):
        raise ValueError("not a position")
    return FilePosition(**fields)  # type: ignore[arg-type]
