"""Reads what declares archives: a file, or a root below which the tables of topics are whose configs enable one."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping

from headwater.pipelines.archive.archive_file import DeclaredArchives, parse_declared
from headwater.pipelines.archive.errors import ArchiveError
from headwater.pipelines.validation.declaring_file import declaring_text, named_text

__all__ = ["declared_archives", "is_root"]

COMMAND_LINE = "the command line"


def is_root(where: str) -> bool:
    """Whether a text names a root, and not a file: a URL, a folder, or a path that ends with a slash.

    >>> is_root("hdfs://namenode/lake"), is_root("lake/"), is_root("archive.yaml")
    (True, True, False)
    """
    return bool(re.match(r"[a-z][a-z0-9+.-]*:/", where)) or where.endswith("/") or os.path.isdir(where)


def declared_archives(where: str, assignments: Mapping[str, str]) -> DeclaredArchives:
    """What a file declares, or a root; '' is none of both. Raises ArchiveError and PipelineError."""
    if where and not is_root(where):
        folder = os.path.dirname(os.path.abspath(where))
        text = declaring_text(where, "the archives")
        return parse_declared(text, where, assignments, folder, os.environ, named_text(folder))
    if assignments:
        raise ArchiveError("variables are those of a file of archives, and there is none")
    text = json.dumps({"archive": {"root": where} if where else {}}).replace("${", "$${")
    return parse_declared(text, COMMAND_LINE, {}, os.getcwd(), {}, named_text(os.getcwd()))
