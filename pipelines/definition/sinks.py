"""`to:`: where a stage's rows go. Pure."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from pydantic import Discriminator, Field, Tag, model_validator

from headwater.pipelines.definition.model import (
    Columns,
    Expression,
    Model,
    OneOrMany,
    Options,
    Path,
    Shown,
    TopicName,
    kind_of,
)
from headwater.pipelines.definition.steps import PythonFunction
from headwater.pipelines.definition.tables import JdbcAddress

CLUSTER_COLUMNS_MAX = 4  # Delta's own limit

Guarantee: TypeAlias = Literal["exactly_once", "at_least_once"]
Compression: TypeAlias = Literal["none", "gzip", "snappy", "lz4", "zstd"]


class TopicSink(Model):
    """Rows to a topic."""

    topic: TopicName = Field(description="the topic to write")
    key: Annotated[str | None, Shown("SQL expression", "no key")] = Field(
        default=None,
        min_length=1,
        description="the record's key: text unless the topic says otherwise; records of one key go to one partition, "
        "the one that Kafka's Java client takes",
    )
    value: Annotated[str | None, Shown("SQL expression", "all columns in the topic's format")] = Field(
        default=None,
        min_length=1,
        description="the record's value instead: bytes as they are, structures as JSON, the rest as text",
    )
    headers: dict[str, Expression] = Field(
        default_factory=dict, description="headers by name; one whose expression is null is left out"
    )
    timestamp: Annotated[str | None, Shown("SQL expression", "the time of writing")] = Field(
        default=None, min_length=1, description="the record's timestamp"
    )
    tombstone_when: Annotated[str | None, Shown("SQL expression", "never")] = Field(
        default=None,
        min_length=1,
        description="rows for which it is true are written without a value, which deletes their key from a compacted "
        "topic; needs a key",
    )
    compression: Compression = Field(
        default="none",
        description="how the record batches are compressed, as a Kafka producer's `compression.type` says",
    )
    guarantee: Guarantee = Field(
        default="exactly_once",
        description="whether a micro-batch that runs again after a crash may write records twice",
    )

    @model_validator(mode="after")
    def _a_tombstone_has_a_key(self) -> TopicSink:
        if self.tombstone_when is not None and self.key is None:
            raise ValueError("tombstone_when needs a key: a tombstone deletes one")
        return self


class Merge(Model):
    """Rows as changes of a table's rows."""

    keys: Columns = Field(description="columns whose values name one row of the table")
    sequence: Annotated[tuple[str, ...], OneOrMany(), Shown("list of columns")] = Field(
        default=(),
        description="columns that tell the later of two changes of one row, the most significant first; a change that "
        "is earlier than what the table has seen of its key, deletes among it, is passed over; the position at the "
        "source breaks ties. Without it, the order of arrival tells",
    )
    delete_when: Annotated[str | None, Shown("SQL expression", "never")] = Field(
        default=None, min_length=1, description="rows for which it is true delete their key's row"
    )
    scd: Literal[1, 2] = Field(
        default=1,
        description="1: the table holds the latest state of each key. 2: it holds every state, with `_valid_from` and "
        "`_valid_to` (values of the first sequence column) and `_current`",
    )

    @model_validator(mode="after")
    def _history_needs_a_sequence(self) -> Merge:
        if self.scd == 2 and len(self.sequence) != 1:
            raise ValueError("scd: 2 needs a sequence of one column, which says from when on a state is valid")
        return self


class DeltaSink(Model):
    """Rows to a Delta table; each micro-batch is written once."""

    delta: Path = Field(description="folder of the table; made when it does not exist")
    partition_by: Annotated[tuple[str, ...], Shown("list of SQL expressions")] = Field(
        default=(), description="partition columns: a column, or `EXPRESSION AS name`"
    )
    cluster_by: Annotated[tuple[str, ...], Shown("list of columns")] = Field(
        default=(),
        max_length=CLUSTER_COLUMNS_MAX,
        description="columns of Delta's liquid clustering, instead of partitions; taken when the table is made",
    )
    merge: Annotated[Merge | None, Shown("merge", "rows are added")] = Field(
        default=None, description="take rows as changes of the table's rows"
    )
    merge_schema: bool = Field(
        default=True, description="columns that the table does not have are added to it; else they stop the stage"
    )
    properties: Options = Field(
        default_factory=dict, description="table properties, taken when the table is made: `delta.enableChangeDataFeed`"
    )

    @model_validator(mode="after")
    def _one_layout(self) -> DeltaSink:
        if self.partition_by and self.cluster_by:
            raise ValueError("a table has either partition_by or cluster_by")
        return self


class FilesSink(Model):
    """Rows to files in a folder; each micro-batch is written once."""

    files: Path = Field(description="folder, on any file system that Hadoop knows")
    format: Literal["csv", "json", "parquet", "orc"] = Field(description="format of the files")
    partition_by: Annotated[tuple[str, ...], Shown("list of SQL expressions")] = Field(
        default=(), description="folders `name=value`: a column, or `EXPRESSION AS name`"
    )
    options: Options = Field(
        default_factory=dict, description="options of Spark's writer, such as `compression`; CSV gets a header"
    )


class JdbcSink(JdbcAddress):
    """Rows to a database's table; each micro-batch is written once, in one transaction."""

    table: Annotated[str, Shown("text")] = Field(
        min_length=1, description="the table; made by the first micro-batch when it does not exist"
    )
    keys: Annotated[tuple[str, ...], OneOrMany(), Shown("list of columns")] = Field(
        default=(), description="rows replace those of the same key; without keys they are added"
    )
    sequence: Annotated[tuple[str, ...], OneOrMany(), Shown("list of columns")] = Field(
        default=(),
        description="columns that tell the later of two rows of one key, as `sequence` of a [merge](#merge) does",
    )
    delete_when: Annotated[str | None, Shown("SQL expression", "never")] = Field(
        default=None, min_length=1, description="rows for which it is true delete their key's row; needs keys"
    )

    @model_validator(mode="after")
    def _deletes_need_keys(self) -> JdbcSink:
        if not self.keys and (self.delete_when is not None or self.sequence):
            raise ValueError("delete_when and sequence need keys")
        return self


class PythonSink(Model):
    """A function of the user's that gets each micro-batch."""

    python: Annotated[PythonFunction, Shown("function")] = Field(
        description="a function that takes a DataFrame and the batch's number; it may be called again with the same "
        "number after a crash"
    )


Sink: TypeAlias = Annotated[
    Annotated[TopicSink, Tag("topic")]
    | Annotated[DeltaSink, Tag("delta")]
    | Annotated[FilesSink, Tag("files")]
    | Annotated[JdbcSink, Tag("jdbc")]
    | Annotated[PythonSink, Tag("python")],
    Discriminator(
        kind_of("topic", "delta", "files", "jdbc", "python"),
        custom_error_type="kind",
        custom_error_message="a sink names one of topic, delta, files, jdbc, python",
    ),
]
