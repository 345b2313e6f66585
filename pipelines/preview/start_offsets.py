"""Offset ranges that a preview reads: a start and a limit. Pure except for `ranges_of`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from headwater.pipelines.datasource.brokers import Brokers, connection_options
from headwater.pipelines.timestamps import timestamp_ms

EARLIEST: Final = "earliest"
LATEST: Final = "latest"
RECORDS_MAX: Final = 10_000  # of a topic, by default


@dataclass(frozen=True, slots=True)
class Start:
    """Start of a preview: the first records, the last records, records from an offset on, or since a moment (ms)."""

    kind: str
    number: int = 0


def parse_start(text: str) -> Start:
    """Parse `earliest`, `latest`, an offset or a moment.

    >>> parse_start("latest"), parse_start("47")
    (Start(kind='latest', number=0), Start(kind='offset', number=47))
    >>> parse_start("2013-01-01T05:00:00Z")
    Start(kind='timestamp', number=1357016400000)
    """
    if text in (EARLIEST, LATEST):
        return Start(text)
    if text.isascii() and text.isdecimal() and len(text) <= 18:
        return Start("offset", int(text))
    moment_ms = timestamp_ms(text.removeprefix("@"))
    if moment_ms is None:
        raise ValueError(f"{text[:60]!r} is neither earliest, latest, an offset nor a moment in ISO 8601")
    return Start("timestamp", moment_ms)


@dataclass(frozen=True, slots=True)
class Range:
    """The offsets of a partition to read (excluding the end), and the existing offsets."""

    first: int
    end: int
    earliest: int
    latest: int


def ranges(
    start: Start, bounds: Mapping[int, tuple[int, int]], since: Mapping[int, int], records_max: int
) -> dict[int, Range]:
    """The range of each partition. `bounds` are its first and next offset; `since` is the first offset of the moment.

    The partitions share the limit: the rest of a short partition's share goes to the others.

    >>> ranges(Start("earliest"), {0: (0, 100), 1: (5, 8)}, {}, 10)
    {0: Range(first=0, end=7, earliest=0, latest=100), 1: Range(first=5, end=8, earliest=5, latest=8)}
    >>> ranges(Start("latest"), {0: (0, 100)}, {}, 10)
    {0: Range(first=90, end=100, earliest=0, latest=100)}
    """
    firsts = {}
    for partition, (earliest, latest) in bounds.items():
        wanted = earliest
        if start.kind == "offset":
            wanted = start.number
        elif start.kind == "timestamp":
            found = since.get(partition, -1)
            wanted = latest if found < 0 else found
        firsts[partition] = min(max(wanted, earliest), latest)
    shares = _shared({p: bounds[p][1] - first for p, first in firsts.items()}, records_max)
    chosen = {}
    for partition, (earliest, latest) in bounds.items():
        first = latest - shares[partition] if start.kind == LATEST else firsts[partition]
        chosen[partition] = Range(first, first + shares[partition], earliest, latest)
    return chosen


def _shared(there: Mapping[int, int], most: int) -> dict[int, int]:
    """Distribute the limit over the partitions as evenly as possible."""
    shares = {}
    left = most
    for count, partition in enumerate(sorted(there, key=lambda p: (there[p], p))):
        shares[partition] = min(there[partition], left // (len(there) - count))
        left -= shares[partition]
    return shares


def ranges_of(where: Brokers, topic: str, start: Start, records_max: int, *, committed: bool) -> dict[int, Range]:
    """Request the ranges from the brokers. Raises SourceError, also for a missing topic."""
    from headwater.logtier.client import cluster as client
    from headwater.pipelines.datasource.errors import client_errors
    from headwater.pipelines.datasource.options import ReadOptions

    isolation = "read_committed" if committed else "read_uncommitted"
    options = ReadOptions.parse(connection_options(where) | {"subscribe": topic, "kafka.isolation.level": isolation})
    with client_errors(), client.ClusterClient(options.client) as cluster:
        partitions = cluster.partitions(topic)
        first = cluster.list_offsets({(topic, partition): client.EARLIEST for partition in partitions})
        last = cluster.list_offsets({(topic, partition): client.LATEST for partition in partitions})
        since = {}
        if start.kind == "timestamp":
            since = cluster.list_offsets({(topic, partition): start.number for partition in partitions})
    bounds = {partition: (first[topic, partition], last[topic, partition]) for partition in sorted(partitions)}
    return ranges(start, bounds, {partition: offset for (_, partition), offset in since.items()}, records_max)


def offsets_json(topic: str, ranges: Mapping[int, Range], *, end: bool) -> str:
    """One end of the ranges in the form of the option `startingOffsets` or `endingOffsets`."""
    return json.dumps({topic: {str(p): one.end if end else one.first for p, one in ranges.items()}})
