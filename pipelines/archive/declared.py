"""Reads the file that declares archives."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from headwater.pipelines.archive.archive_file import TopicArchiveSpec, parse_archive
from headwater.pipelines.archive.errors import ArchiveError
from headwater.pipelines.definition import Loaded
from headwater.pipelines.errors import nearest

__all__ = ["declared_archives"]

FILE_BYTES_MAX = 4 << 20


def declared_archives(
    path: str, assignments: Mapping[str, str], topics: Sequence[str] = ()
) -> tuple[list[TopicArchiveSpec], Loaded]:
    """The archives of a file, all or those of some topics, and the declarations of their topics.

    Raises ArchiveError and PipelineError.
    """
    folder = os.path.dirname(os.path.abspath(path))
    specs, loaded = parse_archive(
        _read(os.path.abspath(path)), path, assignments, folder, os.environ, lambda name: _read(_below(folder, name))
    )
    known = {each.topic: each for each in specs}
    for topic in topics:
        if topic not in known:
            hint = nearest(topic, sorted(known))
            raise ArchiveError(f"{path} has no archive of the topic '{topic}'" + (f"; {hint}" if hint else ""))
    return [known[topic] for topic in topics] if topics else specs, loaded


def _below(folder: str, name: str) -> str:
    return os.path.join(folder, name)


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise ArchiveError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ArchiveError(f"{path} is not UTF-8 text") from None
    if len(text) > FILE_BYTES_MAX:
        raise ArchiveError(f"{path} is larger than {FILE_BYTES_MAX:,} characters")
    return text
