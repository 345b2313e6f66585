"""What is written down about a load: its target, its plan before the first row, its manifest after the last. Pure.

JSON texts, below `_headwater/` of a target. Their form is documented in docs/reference/loads.md.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from headwater.pipelines.loads.errors import LoadError
from headwater.pipelines.loads.offsets.ranges import NO_RANGES, Range, Ranges, from_json, joined, to_json

__all__ = ["ID_PATTERN", "LoadPlan", "LoadedFile", "Manifest", "TargetDescription", "check_id"]

_VERSION: Final = 1
ID_PATTERN: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._=@+-]{0,149}")


def check_id(text: str) -> str:
    """Check a load's name, which becomes part of file names on every file system. Raises LoadError."""
    if not ID_PATTERN.fullmatch(text):
        raise LoadError(
            f"{text[:60]!r} cannot name a load: use 1 to 150 letters, digits and . _ = @ + -, "
            "the first a letter or digit"
        )
    return text


@dataclass(frozen=True, slots=True)
class TargetDescription:
    """What a folder is the target of.

    Attributes:
        lock_id: Names the target's lock, whatever the folder's URL.
        partition_by: Names and expressions of the partition columns: one column never mixes two meanings.
    """

    lock_id: str
    topic: str
    topic_id: str
    format: str
    partition_by: tuple[str, ...] = ()

    def encode(self) -> bytes:
        """The description as JSON."""
        return _encoded(
            {
                "version": _VERSION,
                "lock_id": self.lock_id,
                "topic": self.topic,
                "topic_id": self.topic_id,
                "format": self.format,
                "partition_by": list(self.partition_by),
            }
        )

    @classmethod
    def decode(cls, data: bytes, path: str) -> TargetDescription:
        """The description in a file. Raises LoadError."""
        found = _decoded(data, path)
        partitions = found.get("partition_by", [])
        if not isinstance(partitions, list):
            raise LoadError(f"{path} is not a record of a load: it has no partition_by")
        return cls(
            _text(found, "lock_id", path),
            _text(found, "topic", path),
            _text(found, "topic_id", path),
            _text(found, "format", path),
            tuple(map(str, partitions)),
        )


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """A load's range, resolved once.

    Attributes:
        ranges: The offsets to load.
        gaps: Offsets within what was asked for that retention had removed before.
        asked: `from` and `until`, as they were given.
        bounds: Of an interval, where it starts and ends in every partition, also where it has no offset.
    """

    id: str
    topic: str
    topic_id: str
    ranges: Ranges
    gaps: Ranges = field(default_factory=dict)
    asked: tuple[str, str] = ("", "")
    planned_at: str = ""
    bounds: Mapping[int, Range] = field(default_factory=dict)

    @property
    def covered(self) -> Ranges:
        """What the target has, or knows to be lost, after this load."""
        return joined(self.ranges, self.gaps)

    def encode(self) -> bytes:
        """The plan as JSON."""
        return _encoded(
            {
                "version": _VERSION,
                "id": self.id,
                "topic": self.topic,
                "topic_id": self.topic_id,
                "from": self.asked[0],
                "until": self.asked[1],
                "offsets": to_json(self.ranges),
                "gaps": to_json(self.gaps),
                "planned_at": self.planned_at,
                "bounds": {str(p): list(each) for p, each in sorted(self.bounds.items())},
            }
        )

    @classmethod
    def decode(cls, data: bytes, path: str) -> LoadPlan:
        """The plan in a file. Raises LoadError."""
        found = _decoded(data, path)
        return cls(
            id=_text(found, "id", path),
            topic=_text(found, "topic", path),
            topic_id=_text(found, "topic_id", path),
            ranges=_ranges(found, "offsets", path),
            gaps=_ranges(found, "gaps", path),
            asked=(_text(found, "from", path), _text(found, "until", path)),
            planned_at=_text(found, "planned_at", path),
            bounds=_bounds(found, path),
        )


@dataclass(frozen=True, slots=True)
class LoadedFile:
    """A file of a load: its path below the target, its size in bytes, its SHA-256 in hexadecimal digits."""

    path: str
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """A load that is done.

    Attributes:
        sequence: Its number among the target's loads.
        rows: Rows, with those refused.
        refused: Rows that could not be decoded.
        late: Rows of an interval's load with a timestamp before its start: the interval before was loaded without them.
        schema: The rows' columns, as Spark writes a schema in JSON, its keys sorted.
        files: The files; empty for a Delta table, which lists its own.
        removed: Files of the load that this one replaces.
        replaces: Whether this replaced an earlier load of the same id.
        coverage: All offsets of the target after this load.
        chain_ends: Where the target's chain of loads ends, after this load.
    """

    plan: LoadPlan
    sequence: int
    format: str
    rows: int
    refused: int
    schema: str
    partition_by: tuple[str, ...] = ()
    files: tuple[LoadedFile, ...] = ()
    removed: tuple[str, ...] = ()
    replaces: bool = False
    coverage: Ranges = field(default_factory=dict)
    chain_ends: Mapping[int, int] = field(default_factory=dict)
    loaded_at: str = ""
    late: int = 0

    @property
    def name(self) -> str:
        """The manifest's file name, without its ending: of a load that was replaced, each has its own."""
        return f"{self.plan.id}~{self.sequence}" if self.replaces else self.plan.id

    def value(self) -> dict[str, Any]:
        """The manifest as JSON values."""
        return {
            "version": _VERSION,
            "id": self.plan.id,
            "sequence": self.sequence,
            "topic": self.plan.topic,
            "topic_id": self.plan.topic_id,
            "from": self.plan.asked[0],
            "until": self.plan.asked[1],
            "offsets": to_json(self.plan.ranges),
            "gaps": to_json(self.plan.gaps),
            "rows": self.rows,
            "refused": self.refused,
            "late": self.late,
            "format": self.format,
            "partition_by": list(self.partition_by),
            "files": [{"path": f.path, "size": f.size, "sha256": f.sha256} for f in self.files],
            "removed": list(self.removed),
            "replaces": self.replaces,
            "schema": json.loads(self.schema) if self.schema else None,
            "coverage": to_json(self.coverage),
            "chain_ends": {str(p): end for p, end in sorted(self.chain_ends.items())},
            "planned_at": self.plan.planned_at,
            "loaded_at": self.loaded_at,
        }

    def encode(self) -> bytes:
        """The manifest as JSON."""
        return _encoded(self.value())

    @classmethod
    def decode(cls, data: bytes, path: str) -> Manifest:
        """The manifest in a file. Raises LoadError."""
        found = _decoded(data, path)
        try:
            return cls(
                LoadPlan.decode(data, path),
                int(found["sequence"]),
                _text(found, "format", path),
                int(found["rows"]),
                int(found["refused"]),
                json.dumps(found["schema"], sort_keys=True) if found["schema"] is not None else "",
                tuple(str(each) for each in found["partition_by"]),
                tuple(LoadedFile(str(f["path"]), int(f["size"]), str(f["sha256"])) for f in found["files"]),
                tuple(str(each) for each in found["removed"]),
                bool(found["replaces"]),
                _ranges(found, "coverage", path),
                {int(p): int(end) for p, end in found["chain_ends"].items()},
                _text(found, "loaded_at", path),
                int(found.get("late", 0)),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise LoadError(f"{path} is no manifest of a load: {error}") from error


def _encoded(value: Mapping[str, Any]) -> bytes:
    return (json.dumps(value, ensure_ascii=False, indent=1) + "\n").encode()


def _decoded(data: bytes, path: str) -> dict[str, Any]:
    try:
        found = json.loads(data)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise LoadError(f"{path} is not a record of a load: it is no JSON object")
    if found.get("version") != _VERSION:
        raise LoadError(f"{path} has the version {found.get('version')!r}: a newer Headwater wrote it")
    return found


def _text(found: Mapping[str, Any], name: str, path: str) -> str:
    value = found.get(name)
    if not isinstance(value, str):
        raise LoadError(f"{path} is not a record of a load: it has no {name}")
    return value


def _ranges(found: Mapping[str, Any], name: str, path: str) -> Ranges:
    try:
        return from_json(found.get(name, NO_RANGES))
    except ValueError as error:
        raise LoadError(f"{path} is not a record of a load: {name}: {error}") from error


def _bounds(found: Mapping[str, Any], path: str) -> dict[int, Range]:
    try:
        return {int(p): (int(start), int(end)) for p, (start, end) in found.get("bounds", {}).items()}
    except (AttributeError, TypeError, ValueError) as error:
        raise LoadError(f"{path} is not a record of a load: bounds: {error}") from error
