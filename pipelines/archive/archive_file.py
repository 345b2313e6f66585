"""Archives declared in YAML: which topics, with which values, into which tables. Pure."""

from __future__ import annotations

import posixpath
import re
import urllib.parse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field, field_validator

from headwater.pipelines.archive.errors import ArchiveError
from headwater.pipelines.archive.round_plan import OnGap
from headwater.pipelines.definition import Loaded
from headwater.pipelines.definition.includes import ReadFile
from headwater.pipelines.definition.model import Interval, Model, Shown, interval_ms, named_topics
from headwater.pipelines.definition.topic_file import TopicFile, parse_topic_file
from headwater.pipelines.file_systems.schemes import scheme_fault
from headwater.pipelines.loads.offsets.positions import Position, PositionKind, parse_position

__all__ = [
    "ArchiveDeclaration",
    "ArchiveFile",
    "ArchivedTopic",
    "DeclaredArchives",
    "OnError",
    "TopicArchiveSpec",
    "archive_spec",
    "overlap",
    "parse_archive",
    "parse_declared",
]

TOPICS_MAX = 1_000
ROUND_BYTES = 1 << 30
ROUND_BYTES_MIN = 1 << 20
FRESHNESS = "60 seconds"
FRESHNESS_MS_MIN = 1_000
VIEW_GRACE = "10 minutes"

OnError = Literal["store", "suspend"]
Mode = Literal["append", "upsert"]


class _Choices(Model):
    """What can be said for all topics and for one; None is what was said for all, or else the default."""

    start: str | None = Field(
        default=None,
        alias="from",
        description="where a new archive begins: `earliest`, `latest`, an offset, offsets by partition, a time. "
        "Default: `earliest`",
    )
    raw: bool | None = Field(
        default=None, description="keep the bytes of every value in the column `_value`. Default: `false`"
    )
    headers: bool | None = Field(
        default=None, description="keep the records' headers in the column `_headers`. Default: `true`"
    )
    on_gap: OnGap | None = Field(
        default=None,
        description="records that retention deleted before they were archived: `fail` stops the topic's archive, "
        "`record` goes on behind them and records the gap in the table. Default: `fail`",
    )
    on_error: OnError | None = Field(
        default=None,
        description="values that cannot be decoded: `store` keeps them, with the reason, in the columns `_value` and "
        "`_error`; `suspend` stops the topic's archive before them. Default: `store`",
    )
    mode: Mode | None = Field(
        default=None,
        description="how records become rows of a new table: `append`, a row each; `upsert`, the last record of each "
        "key, a tombstone deletes it. A table keeps its mode. Default: `upsert` if the topic is compacted, else "
        "`append`",
    )
    merge_schema: bool | None = Field(
        default=None, description="add columns of a later schema to the table. Default: `false`"
    )
    maintenance: bool | None = Field(
        default=None,
        description="let the archiver compact small files, and delete those that no version needs. Default: `true`",
    )
    freshness: Annotated[Interval | None, Shown("interval", FRESHNESS)] = Field(
        default=None, description="how long a record may wait until it is in the table"
    )
    view_grace: Annotated[Interval | None, Shown("interval", VIEW_GRACE)] = Field(
        default=None,
        description="how far the consumer group `headwater.archive.TOPIC` stays behind the table, for queries that "
        "have chosen an older version of it",
    )
    round_bytes: Annotated[int | None, Shown("bytes", f"{ROUND_BYTES:,}")] = Field(
        default=None, ge=ROUND_BYTES_MIN, description="about how much of the log a commit adds at most"
    )

    @field_validator("start", mode="before")
    @classmethod
    def _unquoted(cls, value: object) -> object:
        """Offsets and times as YAML reads them without quotes."""
        if isinstance(value, bool) or value is None:
            return value
        return value.isoformat() if hasattr(value, "isoformat") else str(value) if isinstance(value, int) else value

    @field_validator("start")
    @classmethod
    def _position(cls, value: str | None) -> str | None:
        if value is not None and parse_position(value).kind is PositionKind.LAST:
            raise ValueError("an archive goes on where its table ends: `from` says where a new one begins")
        return value

    @field_validator("freshness")
    @classmethod
    def _not_too_often(cls, value: str | None) -> str | None:
        if value is not None and interval_ms(value) < FRESHNESS_MS_MIN:
            raise ValueError("freshness is at least 1 second: each round is a commit")
        return value


class ArchivedTopic(_Choices):
    """One topic's archive."""

    table: str | None = Field(
        default=None, min_length=1, description="the Delta table: a path or URL. Default: the topic's name below `root`"
    )


class ArchiveDeclaration(_Choices):
    """`archive:`. What is said here is said for every topic that does not say it itself."""

    root: str | None = Field(default=None, min_length=1, description="path or URL below which the tables are")
    topics: dict[str, ArchivedTopic | None] = Field(
        default_factory=dict,
        max_length=TOPICS_MAX,
        description="the archived topics, with what differs for them; others may be enabled by their topic configs",
    )

    _topic_names = field_validator("topics")(named_topics)


class ArchiveFile(TopicFile):
    """The whole file."""

    archive: ArchiveDeclaration = Field(description="what is archived")


@dataclass(frozen=True, slots=True)
class TopicArchiveSpec:
    """The archive of one topic.

    Attributes:
        table: The Delta table, an absolute path or a URL.
        start: Where a new archive begins.
        freshness_ms: How long a record may wait.
        view_grace_ms: How far the archive's group stays behind the table.
        round_bytes: About how many bytes of the log a round takes.
        mode: How records become rows; None for what the table has, or by the topic's cleanup.policy for a new one.
        configs: The topic configs that declare the archive, as text; '' if a file does.
    """

    topic: str
    table: str
    start: Position
    raw: bool = False
    headers: bool = True
    on_gap: OnGap = "fail"
    on_error: OnError = "store"
    merge_schema: bool = False
    maintenance: bool = True
    freshness_ms: int = interval_ms(FRESHNESS)
    view_grace_ms: int = interval_ms(VIEW_GRACE)
    round_bytes: int = ROUND_BYTES
    mode: Mode | None = None
    configs: str = ""


@dataclass(frozen=True, slots=True)
class DeclaredArchives:
    """What a file declares.

    Attributes:
        declaration: What holds for archives that topic configs add.
        specs: The archives of the topics that the file names.
        loaded: A pipeline without stages that declares topics' values.
    """

    declaration: ArchiveDeclaration
    specs: tuple[TopicArchiveSpec, ...]
    loaded: Loaded


def parse_archive(
    text: str, file: str, variables: Mapping[str, str], folder: str, environ: Mapping[str, str], read_file: ReadFile
) -> tuple[list[TopicArchiveSpec], Loaded]:
    """Check a file's text. Returns the archives, and a pipeline without stages that declares their topics.

    Raises PipelineError with every problem of the file, and ArchiveError for tables that cannot be.
    """
    declared = parse_declared(text, file, variables, folder, environ, read_file)
    return list(declared.specs), declared.loaded


def parse_declared(
    text: str, file: str, variables: Mapping[str, str], folder: str, environ: Mapping[str, str], read_file: ReadFile
) -> DeclaredArchives:
    """As `parse_archive`, with what holds for archives that topic configs add."""
    parsed, loaded = parse_topic_file(ArchiveFile, "archive", text, file, variables, folder, environ, read_file)
    specs = tuple(
        archive_spec(parsed.archive, topic, own or ArchivedTopic(), loaded)
        for topic, own in parsed.archive.topics.items()
    )
    _require_apart(specs)
    return DeclaredArchives(parsed.archive, specs, loaded)


def _require_apart(specs: Sequence[TopicArchiveSpec]) -> None:
    """Raise ArchiveError for two archives with one table, and for a table within another, which VACUUM would empty."""
    topics: dict[str, str] = {}
    for each in specs:
        other = topics.setdefault(_place(each.table), each.topic)
        if other != each.topic:
            raise ArchiveError(_one_table(each, other))
    for each in specs:
        place = _place(each.table)
        for parent in _parents(place):
            if parent in topics:
                raise ArchiveError(_within(each.topic, each.table, topics[parent]))


def overlap(spec: TopicArchiveSpec, others: Sequence[TopicArchiveSpec]) -> str:
    """Why an archive's table cannot be beside those of others; '' if it can."""
    place = _place(spec.table)
    for other in others:
        there = _place(other.table)
        if place == there:
            return _one_table(spec, other.topic)
        if there in _parents(place):
            return _within(spec.topic, spec.table, other.topic)
        if place in _parents(there):
            return _within(other.topic, other.table, spec.topic)
    return ""


def _one_table(spec: TopicArchiveSpec, other: str) -> str:
    return f"{spec.table} would be the table of {other} and of {spec.topic}: a table has one topic"


def _within(inner: str, table: str, outer: str) -> str:
    return (
        f"the table of {inner}, {table}, would be within that of {outer}: VACUUM of the outer table deletes the files "
        "of the inner one"
    )


def _parents(place: str) -> list[str]:
    return [place[:end] for end, character in enumerate(place) if character == "/"]


def _place(table: str) -> str:
    """A table's path, in one form.

    >>> _place("file:///lake//flights"), _place("hdfs://nn/lake/./flights")
    ('/lake/flights', 'hdfs://nn/lake/flights')
    """
    url = urllib.parse.urlsplit(table)
    place = posixpath.normpath(f"/{url.path.lstrip('/')}")
    return place if url.scheme in ("", "file") else f"{url.scheme}://{url.netloc}{place}"


def archive_spec(declared: ArchiveDeclaration, topic: str, own: ArchivedTopic, loaded: Loaded) -> TopicArchiveSpec:
    """The archive of a topic, by what is said for it and for all. Raises ArchiveError for a table that cannot be."""
    if own.table is None and declared.root is None:
        raise ArchiveError(f"the archive of {topic} has no table: give archive.root, or the topic's table")
    table = loaded.path(own.table if own.table is not None else f"{str(declared.root).rstrip('/')}/{topic}")
    fault = scheme_fault(table)
    if fault:
        raise ArchiveError(fault)
    if _place(table).endswith("/"):
        raise ArchiveError(f"{table}: the root of a file system is no table: name a folder")
    if re.search(r"[*?\[\]{}\\]", table):
        raise ArchiveError(f"{table}: Spark takes * ? [ ] {{ }} and \\ in a path for a pattern: name another table")
    chosen = {
        name: value
        for name in ("raw", "headers", "on_gap", "on_error", "mode", "merge_schema", "maintenance", "round_bytes")
        if (value := _said(declared, own, name)) is not None
    }
    freshness, grace = (
        interval_ms(str(_said(declared, own, name) or default))
        for name, default in (("freshness", FRESHNESS), ("view_grace", VIEW_GRACE))
    )
    start = parse_position(str(_said(declared, own, "start") or "earliest"))
    place = table.rstrip("/")
    return TopicArchiveSpec(topic, place, start, freshness_ms=freshness, view_grace_ms=grace, **chosen)  # type: ignore[arg-type]


def _said(declared: ArchiveDeclaration, own: ArchivedTopic, name: str) -> object:
    said = getattr(own, name)
    return getattr(declared, name) if said is None else said
