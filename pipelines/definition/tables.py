"""`tables:`: what stages join their rows with. Pure."""

from __future__ import annotations

import re
from typing import Annotated, Literal, TypeAlias

from pydantic import AfterValidator, Discriminator, Field, Tag, model_validator

from headwater.pipelines.definition.jdbc_url import JdbcUrl
from headwater.pipelines.definition.model import Model, Options, Path, Shown, TopicName, interval, kind_of
from headwater.pipelines.definition.secret_text import Password, SecretText, masked_secrets

FileFormat: TypeAlias = Literal["csv", "json", "parquet", "orc", "avro"]
SecretOptions: TypeAlias = Annotated[dict[str, SecretText], AfterValidator(masked_secrets), Shown("name: value")]

# `id BIGINT`: a path has no blank before a type.
_COLUMN_LIST = re.compile(r"^\s*[`A-Za-z_][^/\\]*\s+[A-Za-z]", re.DOTALL)

ONCE = "once"
EVERY_BATCH = "every_batch"


def refresh(value: str) -> str:
    """When a table is read again: never, before each micro-batch, or when it is older than an interval."""
    return value if value in (ONCE, EVERY_BATCH) else interval(value)


Refresh: TypeAlias = Annotated[str, AfterValidator(refresh), Shown("`once`, `every_batch`, interval")]
_REFRESH = "how often it is read: once a run, for each micro-batch, or again when it is older than an interval"


def is_columns(schema: str) -> bool:
    """Whether a `schema:` of files lists columns rather than name a file.

    >>> is_columns("id BIGINT, name STRING"), is_columns("schemas/order.json")
    (True, False)
    """
    return bool(_COLUMN_LIST.match(schema)) and not schema.endswith((".json", ".avsc", ".proto"))


class FilesTable(Model):
    """A table from files."""

    format: FileFormat = Field(description="format of the files")
    path: Path = Field(description="file or folder, on any file system that Hadoop knows")
    schema_source: Annotated[str | None, Shown("path, columns", "found")] = Field(
        default=None,
        alias="schema",
        min_length=1,
        description="a schema file, or columns as SQL has them: `id BIGINT, name STRING`",
    )
    options: Options = Field(
        default_factory=dict,
        description="options of Spark's reader; CSV has a header and its columns' types are found, unless they say "
        "otherwise",
    )
    refresh: Refresh = Field(default=ONCE, description=_REFRESH)


class DeltaTable(Model):
    """A Delta table, as it is when it is read."""

    delta: Path = Field(description="folder of the table")
    version: int | None = Field(default=None, ge=0, description="a version to stay with")
    refresh: Refresh = Field(default=ONCE, description=_REFRESH)

    @model_validator(mode="after")
    def _a_version_does_not_change(self) -> DeltaTable:
        if self.version is not None and self.refresh != ONCE:
            raise ValueError("a version of a table stays as it is: leave refresh out")
        return self


class TopicTable(Model):
    """The latest value of each key of a topic, without deleted keys (Kafka Streams' KTable)."""

    topic: TopicName = Field(description="the topic, as a rule a compacted one")
    refresh: Refresh = Field(default=EVERY_BATCH, description=_REFRESH)


class JdbcAddress(Model):
    """How a database is reached."""

    jdbc: Annotated[JdbcUrl, Shown("text")] = Field(
        description="the JDBC URL; the driver's jar comes by `spark.jars` or `spark.jars.packages`"
    )
    username: Annotated[SecretText | None, Shown("text")] = Field(default=None, description="the database's user")
    password: Annotated[Password | None, Shown("secret")] = Field(default=None, description="the user's password")
    driver: str | None = Field(
        default=None, min_length=1, description="the driver's Java class, if the URL does not tell"
    )
    options: SecretOptions = Field(
        default_factory=dict, description="options of Spark's JDBC reader or writer, such as `fetchsize`"
    )


class JdbcTable(JdbcAddress):
    """A table or query of a database."""

    table: Annotated[str | None, Shown("text", "needed, or query")] = Field(
        default=None, min_length=1, description="the table, with its schema if need be"
    )
    query: Annotated[str | None, Shown("SQL")] = Field(
        default=None, min_length=1, description="a SELECT in the database's own SQL instead"
    )
    refresh: Refresh = Field(default=ONCE, description=_REFRESH)

    @model_validator(mode="after")
    def _one_of_both(self) -> JdbcTable:
        if (self.table is None) == (self.query is None):
            raise ValueError("give either table or query")
        return self


Table: TypeAlias = Annotated[
    Annotated[FilesTable, Tag("path")]
    | Annotated[DeltaTable, Tag("delta")]
    | Annotated[TopicTable, Tag("topic")]
    | Annotated[JdbcTable, Tag("jdbc")],
    Discriminator(
        kind_of("path", "delta", "topic", "jdbc"),
        custom_error_type="kind",
        custom_error_message="a table names one of path (with format), delta, topic, jdbc",
    ),
]
