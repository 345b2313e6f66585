"""Rows that Spark makes, for trying out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headwater.pipelines.sources.kind import Running, Sample, StageInput, no_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from headwater.pipelines.definition import Loaded, RateSource
    from headwater.pipelines.sources.known_columns import KnownColumns

DDL = "timestamp TIMESTAMP, value BIGINT"


def stream(spark: SparkSession, source: RateSource) -> DataFrame:
    """So many rows a second, as a streaming frame."""
    return spark.readStream.format("rate").option("rowsPerSecond", source.rate).load()


class RateSourceKind:
    """See `SourceKind`."""

    def columns(self, _session: SparkSession, _loaded: Loaded, _source: RateSource, _known: KnownColumns) -> StructType:
        """The same always."""
        from pyspark.sql.types import StructType

        rows = StructType.fromDDL(DDL)
        assert isinstance(rows, StructType)
        return rows

    def empty(
        self,
        session: SparkSession,
        _source: RateSource,
        _known: KnownColumns,
        schema: StructType | None,
    ) -> DataFrame:
        """The columns alone."""
        return no_rows(session, schema)

    def stream(self, at: StageInput, source: RateSource, _running: Running) -> DataFrame:
        """Rows from now on."""
        return stream(at.session, source)

    def read_again(self, at: StageInput, source: RateSource, plan: Any) -> None:
        """No row is refused."""

    def sample(self, at: StageInput, source: RateSource, wanted: Sample) -> tuple[DataFrame, None]:
        """Those of one second."""
        made = at.session.range(min(source.rate, wanted.rows_max))
        return made.selectExpr("current_timestamp() AS timestamp", "id AS value"), None
