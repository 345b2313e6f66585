"""Which paths and URLs the file systems here are for. Pure."""

from __future__ import annotations

import urllib.parse
from typing import Final

__all__ = ["SCHEMES", "is_local", "scheme_fault", "scheme_of"]

#: Those that `opening.file_system` knows; '' is a path of this machine.
SCHEMES: Final = ("", "file", "hdfs", "s3a", "s3")


def scheme_of(path: str) -> str:
    """Return the scheme of a URL; '' for a path of this machine.

    >>> scheme_of("hdfs:///lake"), scheme_of("/lake"), scheme_of("a:b")
    ('hdfs', '', '')
    """
    return urllib.parse.urlsplit(path).scheme if ":/" in path else ""


def is_local(path: str) -> bool:
    """Whether a path or URL is one of this machine."""
    return scheme_of(path) in ("", "file")


def scheme_fault(path: str) -> str:
    """Why no file system here has a path or URL; '' if one does.

    >>> scheme_fault("gs://bucket/lake"), scheme_fault("hdfs:///lake")
    ("gs://bucket/lake: the scheme 'gs' is not supported; file, hdfs and s3a are", '')
    """
    scheme = scheme_of(path)
    return "" if scheme in SCHEMES else f"{path}: the scheme '{scheme}' is not supported; file, hdfs and s3a are"
