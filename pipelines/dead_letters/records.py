"""Dead letters as records: their content, filters, replayed records, and progress of replays. Pure.

The replayed dead letters of a partition are stored as a consumer group's offset and, beyond it, as ranges in the
offset's metadata: a later replay with another filter covers the remaining ones.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from headwater.pipelines.dead_letters.headers import (
    ERROR,
    EXPECTATION,
    OFFSET,
    PARTITION,
    PIPELINE,
    PREFIX,
    REPLAYED,
    STAGE,
    TOPIC,
)

__all__ = [
    "METADATA_BYTES_MAX",
    "DeadLetter",
    "DeadLetterFilter",
    "Replayed",
    "Written",
    "replay_group",
    "written_back",
]

# The broker's default of offset.metadata.max.bytes.
METADATA_BYTES_MAX: Final = 4096

Headers = tuple[tuple[str, bytes | None], ...]


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """One record of a dead-letter topic."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()

    def header(self, name: str) -> str | None:
        """The text of one of Headwater's headers."""
        found = next((value for header, value in self.headers if header == name), None)
        return None if found is None else found.decode("utf-8", "replace")

    @property
    def own_headers(self) -> Headers:
        """The original record's headers."""
        return tuple((name, value) for name, value in self.headers if not name.startswith(PREFIX))

    @property
    def rounds(self) -> int:
        """The number of earlier replays."""
        return _number(self.header(REPLAYED)) or 0

    @property
    def source(self) -> tuple[str, int, int] | None:
        """Topic, partition and offset of the record; None for a row without its record's origin."""
        topic, partition, offset = self.header(TOPIC), _number(self.header(PARTITION)), _number(self.header(OFFSET))
        return None if topic is None or partition is None or offset is None else (topic, partition, offset)

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON; bytes other than UTF-8 as `{"base64": ...}`."""
        source = self.source
        return {
            "topic": self.topic,
            "partition": self.partition,
            "offset": self.offset,
            "timestamp_ms": self.timestamp_ms,
            "error": self.header(ERROR),
            "pipeline": self.header(PIPELINE),
            "stage": self.header(STAGE),
            "expectation": self.header(EXPECTATION),
            "source": None if source is None else dict(zip(("topic", "partition", "offset"), source, strict=True)),
            "replayed": self.rounds,
            "key": plain(self.key),
            "value": plain(self.value),
            "headers": [{"name": name, "value": plain(value)} for name, value in self.own_headers],
        }


def plain(value: bytes | None) -> Any:
    """Bytes as a JSON value.

    >>> plain(b"abc"), plain(None), plain(b"\\xff")
    ('abc', None, {'base64': '/w=='})
    """
    if value is None:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() and text.isascii() else None


@dataclass(frozen=True, slots=True)
class DeadLetterFilter:
    """A filter of dead letters; unset fields match all. `errors` are parts of the error's text: one match is enough."""

    since_ms: int | None = None
    errors: tuple[str, ...] = ()
    pipeline: str | None = None
    stage: str | None = None
    expectation: str | None = None

    def takes(self, dead_letter: DeadLetter) -> bool:
        """Whether a dead letter matches."""
        if self.since_ms is not None and dead_letter.timestamp_ms < self.since_ms:
            return False
        error = (dead_letter.header(ERROR) or "").lower()
        if self.errors and not any(part.lower() in error for part in self.errors):
            return False
        wanted = ((self.pipeline, PIPELINE), (self.stage, STAGE), (self.expectation, EXPECTATION))
        return all(value is None or dead_letter.header(name) == value for value, name in wanted)


@dataclass(frozen=True, slots=True)
class Written:
    """A replayed record. `partition` is the source's partition, None if the key decides."""

    topic: str
    partition: int | None
    key: bytes | None
    value: bytes | None
    headers: Headers


def written_back(dead_letter: DeadLetter, to: str | None, partitions: int | None) -> Written | None:
    """The replayed record of a dead letter: to its source, or to `to`; None without a known source.

    The record returns to its original partition if the target is its source and still has that partition: `partitions`
    is the target's number of partitions. So it stays with other records of its key, regardless of the original
    partitioner.
    """
    source = dead_letter.source
    if to is None and source is None:
        return None
    if to is None:
        assert source is not None
        target = source[0]
    else:
        target = to
    stays = source is not None and source[0] == target and partitions is not None and source[1] < partitions
    headers = (*dead_letter.own_headers, (REPLAYED, str(dead_letter.rounds + 1).encode()))
    partition = source[1] if stays and source is not None else None
    return Written(target, partition, dead_letter.key, dead_letter.value, headers)


def replay_group(topic: str) -> str:
    """The consumer group that stores the progress of replays of a dead-letter topic.

    >>> replay_group("orders.dead_letters")
    'headwater.replay.orders.dead_letters'
    """
    return f"headwater.replay.{topic}"


class Replayed:
    """The replayed dead letters of one partition: all below `offset`, and the ranges beyond it."""

    def __init__(self, offset: int = 0, ranges: Iterable[tuple[int, int]] = ()) -> None:
        """`ranges` are pairs of first and last offset, inclusive."""
        self._offset = offset
        self._ranges = list(ranges)
        self._join()

    @property
    def offset(self) -> int:
        """The offset of the first dead letter that was not replayed."""
        return self._offset

    def __contains__(self, offset: int) -> bool:
        return offset < self._offset or any(first <= offset <= last for first, last in self._ranges)

    def add(self, first: int, last: int | None = None) -> None:
        """Add a replayed dead letter, or offsets `first` to `last` without any: control records, or compacted ones."""
        self._ranges.append((first, first if last is None else last))
        self._join()

    def _join(self) -> None:
        joined: list[tuple[int, int]] = []
        for first, last in sorted(self._ranges):
            if last < max(self._offset, first):
                continue
            if first <= self._offset:
                self._offset = last + 1
            elif joined and first <= joined[-1][1] + 1:
                joined[-1] = (joined[-1][0], max(last, joined[-1][1]))
            else:
                joined.append((first, last))
        self._ranges = joined

    def metadata(self) -> str:
        """The ranges as the offset's metadata.

        >>> Replayed(3, [(5, 9), (12, 12)]).metadata()
        '5-9,12'
        """
        return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in self._ranges)

    @staticmethod
    def decode(offset: int, metadata: str | None) -> Replayed:
        """The inverse of `metadata`; ignores metadata from other programs.

        >>> Replayed.decode(3, "5-9,12").metadata(), Replayed.decode(3, "mine").metadata()
        ('5-9,12', '')
        """
        ranges = []
        for part in (metadata or "").split(","):
            first, _, last = part.partition("-")
            if _number(first) is None or (last and _number(last) is None):
                return Replayed(max(offset, 0))
            ranges.append((int(first), int(last or first)))
        return Replayed(max(offset, 0), ranges)
