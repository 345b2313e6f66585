"""What is published, and the name under which the cluster remembers it. Pure.

The name is a hash of everything that determines the records: the source's contents, the topic's id, the expressions of
the records' parts and their formats. The same publish thus has the same name on every machine; another file, another
version, or a topic made anew has another name.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final, TypeAlias

from headwater.pipelines.sinks.exactly_once.exactly_once_fence import TransactionOwner

__all__ = [
    "Contents",
    "FileContents",
    "Files",
    "Records",
    "TableVersion",
    "VersionDifference",
    "changed_files",
    "content_name",
    "owner_of",
    "place_key",
    "valid_id",
]

_PREFIX: Final = "headwater.publish"
ID_LENGTH_MAX: Final = 200
_ID: Final = re.compile(r"[\w.:+-]+", re.ASCII)
_SHOWN_NAME: Final = 12  # characters of a name in messages


@dataclass(frozen=True, slots=True)
class FileContents:
    """A file of a source: its path below the source's folder, its size in bytes, its SHA-256."""

    name: str
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Files:
    """A set of files, in order of their names."""

    files: tuple[FileContents, ...]

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)

    def shown(self) -> str:
        """The contents in a few words.

        >>> Files((FileContents("a.json", 10, "00"),)).shown()
        '1 file'
        """
        return "1 file" if len(self.files) == 1 else f"{len(self.files):,} files"


@dataclass(frozen=True, slots=True)
class TableVersion:
    """A version of a Delta table. `commit` is a hash of its commit: copies of a table have one id, and go on apart."""

    table_id: str
    version: int
    commit: str

    def shown(self) -> str:
        """The contents in a few words."""
        return f"version {self.version}"


@dataclass(frozen=True, slots=True)
class VersionDifference:
    """What leads from one version of a Delta table to a later one; with a hash of the commit of either."""

    table_id: str
    from_version: int
    to_version: int
    from_commit: str
    to_commit: str

    def shown(self) -> str:
        """The contents in a few words."""
        return f"versions {self.from_version} to {self.to_version}"


Contents: TypeAlias = Files | TableVersion | VersionDifference


@dataclass(frozen=True, slots=True)
class Records:
    """How rows become records: the topic by its id, SQL expressions, formats, and how the source is read.

    `formats` are the topic's declarations that determine the bytes, such as the value's format and schema. `reading`
    has the source's columns: the file or the options that name them may stay the same while the columns change.
    """

    topic_id: str
    key: str | None
    value: str | None
    timestamp: str | None
    headers: Mapping[str, str]
    formats: Mapping[str, Any]
    reading: Mapping[str, Any] = field(default_factory=dict)
    order_by: tuple[str, ...] = ()


def content_name(contents: Contents, records: Records) -> str:
    """The name of a publish.

    >>> records = Records("u", "id", None, None, {}, {"value": "json"})
    >>> content_name(TableVersion("t", 3, "a"), records) == content_name(TableVersion("t", 3, "b"), records)
    False
    """
    return _hash({"kind": type(contents).__name__, "contents": asdict(contents), "records": asdict(records)})


def place_key(path: str, topic_id: str) -> bytes:
    """The key under which the last publish from a path into a topic is remembered.

    Nothing else is in it: neither what the path held then, nor how it was read, nor the records' formats, all of which
    may have changed since a publish was interrupted.
    """
    return f"{_PREFIX}.place.{_hash({'path': path, 'topic_id': topic_id})}".encode()


def owner_of(name: str, given_id: str | None, topic: str) -> TransactionOwner:
    """Who writes: a publish by the name of its contents, or by the id that the user gives.

    >>> owner_of("3fa9" * 16, None, "flights").transactional_id[:24]
    'headwater.publish.3fa93f'
    >>> owner_of("3fa9" * 16, "daily", "flights").label
    "publish 'daily' to flights"
    """
    own = f"id.{given_id}" if given_id is not None else name
    shown = f"'{given_id}'" if given_id is not None else name[:_SHOWN_NAME]
    transactional_id = f"{_PREFIX}.{own}"
    return TransactionOwner(transactional_id, f"publish {shown} to {topic}", "transaction", group=transactional_id)


def valid_id(text: str) -> str:
    """Check an id that a user gives. Raises ValueError.

    >>> valid_id("2026-11-24T13:00")
    '2026-11-24T13:00'
    """
    if not _ID.fullmatch(text) or len(text) > ID_LENGTH_MAX:
        raise ValueError(f"an id has 1 to {ID_LENGTH_MAX} letters, digits, '.', '_', ':', '+' and '-'")
    return text


def _hash(value: Mapping[str, Any]) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


def changed_files(before: Sequence[FileContents], after: Sequence[FileContents]) -> str | None:
    """The first difference between two lists of files by name and size; None without any.

    >>> changed_files([FileContents("a", 1, "")], [FileContents("a", 2, "")])
    'a has changed'
    >>> changed_files([FileContents("a", 1, "")], [])
    'a is gone'
    """
    old, new = ({file.name: file for file in files} for files in (before, after))
    for name in sorted(old.keys() | new.keys()):
        if name not in new:
            return f"{name} is gone"
        if name not in old:
            return f"{name} is new"
        if old[name].size != new[name].size:
            return f"{name} has changed"
    return None
