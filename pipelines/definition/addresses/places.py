"""Places that stages write and read (topics, folders, tables), comparable between stages. Pure."""

from __future__ import annotations

import posixpath
from collections.abc import Callable
from typing import TypeAlias

Place: TypeAlias = tuple[str, str]
"""A place that stages write and read: its kind (topic, delta, files, jdbc) and its name or path.

The name of a database table is for comparison, not for people: `JdbcUrl.place`."""

PathOf: TypeAlias = Callable[[str], str]
"""Resolves a path of the pipeline's file against the file's folder: `Loaded.path`."""


def normal_path(path: str) -> str:
    """Normalize a path for the comparison of places.

    >>> normal_path("lake//a/"), normal_path("s3a://lake/a/")
    ('lake/a', 's3a://lake/a/')
    """
    return path if "://" in path else posixpath.normpath(path)
