"""Places that stages write and read (topics, folders, tables), comparable between stages. Pure."""

from __future__ import annotations

import posixpath
from collections.abc import Callable
from typing import TypeAlias

Place: TypeAlias = tuple[str, str]
"""Something that stages write and read: its kind (topic, delta, files, jdbc) and its name or path.

Of a database's table the name is for comparison, not for people: `JdbcUrl.place`."""

PathOf: TypeAlias = Callable[[str], str]
"""A path of the pipeline's file, seen from the file's own folder: `Loaded.path`."""


def normal_path(path: str) -> str:
    """Normalize a path for the comparison of places.

    >>> normal_path("lake//a/"), normal_path("s3a://lake/a/")
    ('lake/a', 's3a://lake/a/')
    """
    return path if "://" in path else posixpath.normpath(path)
