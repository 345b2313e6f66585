"""Finds the file system of a path."""

from __future__ import annotations

import urllib.parse

from headwater.pipelines.file_systems.file_system import FileSystem, FileSystemError
from headwater.pipelines.file_systems.local import LocalFiles

__all__ = ["file_system"]


def file_system(path: str) -> FileSystem:
    """Return the file system of a path or URL. Raises FileSystemError for a scheme that is not supported.

    >>> file_system("/lake/flights").is_atomic
    True
    """
    scheme = urllib.parse.urlsplit(path).scheme if ":/" in path else ""
    if scheme in ("", "file"):
        return LocalFiles()
    raise FileSystemError(f"{path}: the scheme '{scheme}' is not supported; file, hdfs and s3a are")
