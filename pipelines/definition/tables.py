"""`tables:`: tables that stages join with their rows. Pure."""

from __future__ import annotations

from abc import abstractmethod
from typing import Annotated, Any, ClassVar, TypeAlias

from pydantic import AfterValidator, Discriminator, Field, Tag, model_validator

from headwater.pipelines.definition.addresses.jdbc_url import JdbcUrl
from headwater.pipelines.definition.addresses.places import PathOf, Place, normal_path
from headwater.pipelines.definition.file_formats import FileFormat, schema_field
from headwater.pipelines.definition.model import Model, Options, Path, Shown, TopicName, interval, kind_of
from headwater.pipelines.definition.secret_text import Password, SecretText, masked_secrets

SecretOptions: TypeAlias = Annotated[dict[str, SecretText], AfterValidator(masked_secrets), Shown("name: value")]

ONCE = "once"
EVERY_BATCH = "every_batch"


def refresh(value: str) -> str:
    """Check when a table is reloaded: never, before each micro-batch, or once older than an interval."""
    return value if value in (ONCE, EVERY_BATCH) else interval(value)


Refresh: TypeAlias = Annotated[str, AfterValidator(refresh), Shown("`once`, `every_batch`, interval")]
_REFRESH = "when the table is read: once per run, for every micro-batch, or after an interval"


class TableModel(Model):
    """Base of every kind of table; `kind` is the field that identifies the kind in the file."""

    kind: ClassVar[str]

    @property
    @abstractmethod
    def place(self) -> Place | None:
        """The place that the table reads; None if no stage can write it."""

    @abstractmethod
    def record(self, path: PathOf) -> dict[str, Any]:
        """Return the fields that identify the table and determine its rows, without secrets."""


class FilesTable(TableModel):
    """A table from files."""

    kind: ClassVar[str] = "path"

    format: FileFormat
    path: Path = Field(description="file or folder, on any Hadoop file system")
    schema_source: Annotated[str | None, Shown("path, columns", "found")] = schema_field()
    options: Options = Field(
        default_factory=dict,
        description="options of Spark's reader. `header` and `inferSchema` are `true` by default for CSV",
    )
    refresh: Refresh = Field(default=ONCE, description=_REFRESH)

    @property
    def place(self) -> Place:
        """The file or the folder."""
        return "files", normal_path(self.path)

    def record(self, path: PathOf) -> dict[str, Any]:
        """Return all fields."""
        return {**self.model_dump(mode="json", exclude={"refresh"}), "path": path(self.path)}


class DeltaTable(TableModel):
    """A Delta table, at its latest or at a fixed version."""

    kind: ClassVar[str] = "delta"

    delta: Path = Field(description="folder of the table")
    version: int | None = Field(default=None, ge=0, description="version to read")
    refresh: Refresh = Field(default=ONCE, description=_REFRESH)

    @model_validator(mode="after")
    def _a_version_does_not_change(self) -> DeltaTable:
        if self.version is not None and self.refresh != ONCE:
            raise ValueError("a fixed version of a table does not change: remove refresh")
        return self

    @property
    def place(self) -> Place:
        """The table's folder."""
        return "delta", normal_path(self.delta)

    def record(self, path: PathOf) -> dict[str, Any]:
        """Return all fields."""
        return {**self.model_dump(mode="json", exclude={"refresh"}), "delta": path(self.delta)}


class TopicTable(TableModel):
    """The latest value of each key of a topic, without deleted keys (Kafka Streams' KTable)."""

    kind: ClassVar[str] = "topic"

    topic: TopicName = Field(description="topic, usually compacted")
    refresh: Refresh = Field(default=EVERY_BATCH, description=_REFRESH)

    @property
    def place(self) -> Place:
        """The topic."""
        return "topic", self.topic

    def record(self, path: PathOf) -> dict[str, Any]:  # noqa: ARG002 - it has none
        """Return all fields except `refresh`."""
        return self.model_dump(mode="json", exclude={"refresh"})


class JdbcAddress(Model):
    """Connection to a database."""

    jdbc: Annotated[JdbcUrl, Shown("text")] = Field(
        description="JDBC URL. The driver's jar is given by `spark.jars` or `spark.jars.packages`"
    )
    username: Annotated[SecretText | None, Shown("text")] = Field(default=None, description="user name")
    password: Annotated[Password | None, Shown("secret")] = Field(default=None, description="password")
    driver: str | None = Field(
        default=None, min_length=1, description="Java class of the driver, if the URL does not determine it"
    )
    options: SecretOptions = Field(
        default_factory=dict, description="options of Spark's JDBC reader or writer, such as `fetchsize`"
    )


class JdbcTable(JdbcAddress, TableModel):
    """A table or query of a database."""

    kind: ClassVar[str] = "jdbc"

    table: Annotated[str | None, Shown("text", "needed, or query")] = Field(
        default=None, min_length=1, description="table name, with its schema if necessary"
    )
    query: Annotated[str | None, Shown("SQL")] = Field(
        default=None, min_length=1, description="`SELECT` statement in the database's SQL, instead of `table`"
    )
    refresh: Refresh = Field(default=ONCE, description=_REFRESH)

    @model_validator(mode="after")
    def _one_of_both(self) -> JdbcTable:
        if (self.table is None) == (self.query is None):
            raise ValueError("give either table or query")
        return self

    @property
    def place(self) -> Place | None:
        """The table with its database's name; None for a query, or if the URL does not determine the database."""
        return None if self.table is None else self.jdbc.place(self.table)

    def record(self, path: PathOf) -> dict[str, Any]:  # noqa: ARG002 - it has none
        """Return the fields; the database is identified by its redacted URL and a hash of its name."""
        where = {"jdbc": str(self.jdbc), "database": self.jdbc.database}
        return {**where, "table": self.table, "query": self.query}


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
