"""Tables of databases as frames, through Spark's JDBC source."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headwater.pipelines.datasource.brokers import Brokers

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from headwater.pipelines.definition import JdbcAddress, JdbcTable, Loaded
    from headwater.pipelines.sources.known_columns import KnownColumns


def options(address: JdbcAddress) -> dict[str, str]:
    """Options of Spark's JDBC source and sink, secrets revealed. Raises SecretMissingError."""
    found = {name: text.reveal() for name, text in address.options.items()}
    found["url"] = address.jdbc.reveal()
    if address.username is not None:
        found["user"] = address.username.reveal()
    if address.password is not None:
        found["password"] = address.password.reveal()
    if address.driver is not None:
        found["driver"] = address.driver
    return found


def table(spark: SparkSession, address: JdbcAddress, name: str) -> DataFrame:
    """The rows of a table; the database applies filters and selects columns."""
    return spark.read.format("jdbc").options(**options(address)).option("dbtable", name).load()


def query(spark: SparkSession, address: JdbcAddress, text: str) -> DataFrame:
    """The rows of a SELECT in the database's own SQL."""
    return spark.read.format("jdbc").options(**options(address)).option("query", text).load()


def table_or_query(spark: SparkSession, source: JdbcTable) -> DataFrame:
    """The rows of the declared table or query."""
    if source.table is not None:
        return table(spark, source, source.table)
    assert source.query is not None, "the model has one of both"
    return query(spark, source, source.query)


class JdbcTableKind:
    """See `TableKind`."""

    def written_columns(self, session: SparkSession, loaded: Loaded, table: JdbcTable, known: KnownColumns) -> None:
        """None: only the database determines the columns."""

    def read(
        self,
        session: SparkSession,
        _loaded: Loaded,
        table: JdbcTable,
        _schema: StructType | None,
        _known: KnownColumns,
        _servers: Brokers,
    ) -> DataFrame:
        """The rows of the table or of the query."""
        return table_or_query(session, table)

    def look_again(self, frame: DataFrame) -> None:
        """Does nothing: each computation of the frame queries the database."""

    def hint(self, _loaded: Loaded, _table: JdbcTable) -> str:
        """No hint: the database's error is complete."""
        return ""
