"""Reads the file that declares archives."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from headwater.pipelines.archive.archive_file import TopicArchiveSpec, parse_archive
from headwater.pipelines.archive.errors import ArchiveError
from headwater.pipelines.definition import Loaded
from headwater.pipelines.errors import nearest
from headwater.pipelines.validation.declaring_file import declaring_text, named_text

__all__ = ["declared_archives"]


def declared_archives(
    path: str, assignments: Mapping[str, str], topics: Sequence[str] = ()
) -> tuple[list[TopicArchiveSpec], Loaded]:
    """The archives of a file, all or those of some topics, and the declarations of their topics.

    Raises ArchiveError and PipelineError.
    """
    folder = os.path.dirname(os.path.abspath(path))
    specs, loaded = parse_archive(
        declaring_text(path, "the archives"), path, assignments, folder, os.environ, named_text(folder)
    )
    known = {each.topic: each for each in specs}
    for topic in topics:
        if topic not in known:
            hint = nearest(topic, sorted(known))
            raise ArchiveError(f"{path} has no archive of the topic '{topic}'" + (f"; {hint}" if hint else ""))
    return [known[topic] for topic in topics] if topics else specs, loaded
