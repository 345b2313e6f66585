"""A database table's rows as a stream: fetched by an increasing column, in increments of files that Spark streams.

Invariant: each row whose column is above the position is fetched once. An increment is written to `fetching-N`; then
the position (number N, the column's highest value) is written and synced; then the folder is moved to `increments/N`,
where the stream finds it. After a crash, a folder up to the position's number is moved, and a folder beyond it is
fetched again. Spark deletes processed files. All files are in the stage's checkpoint folder: a new checkpoint starts
anew.
"""

from __future__ import annotations

import datetime as dt
import decimal
import json
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from headwater.pipelines.definition import JdbcSource, interval_ms
from headwater.pipelines.sources import jdbc
from headwater.pipelines.sources.kind import Running, Sample, StageInput, no_rows
from headwater.pipelines.spark import jvm
from headwater.pipelines.spark.hadoop_files import spark_files
from headwater.pipelines.spark.nullable import nullable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from headwater.pipelines.definition import Loaded
    from headwater.pipelines.sources.known_columns import KnownColumns

# Files may wait for any time: by default, Spark would ignore old files.
_FILE_AGE_MAX: Final = "36500d"
_FETCHING: Final = "fetching-"

Value = int | float | str | decimal.Decimal | dt.datetime | dt.date


class JdbcFeed:
    """Fetches the increments of one input. One thread at a time calls `fetch`."""

    def __init__(self, session: SparkSession, source: JdbcSource, folder: str, schema: StructType) -> None:
        self._session = session
        self._source = source
        self._folder = folder
        self._schema = schema
        self._files = spark_files(session, folder)
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._number = 0
        self._value: Value | None = None

    def open(self) -> None:
        """Resume at the position of the last run."""
        self._files.make_folder(f"{self._folder}/increments")
        text = self._files.read(f"{self._folder}/position")
        if text is not None:
            self._number, self._value = decode_position(text.decode())
        for name in [entry.name for entry in self._files.list(self._folder)]:
            if not name.startswith(_FETCHING):
                continue
            number = int(name.removeprefix(_FETCHING))
            if number <= self._number:
                self._files.rename(f"{self._folder}/{name}", f"{self._folder}/increments/{number:010}")
            else:
                self._files.delete(f"{self._folder}/{name}")

    def stream(self) -> DataFrame:
        """The increments as a streaming frame."""
        return (
            self._session.readStream.format("parquet")
            .schema(self._schema)
            .option("recursiveFileLookup", "true")
            .option("cleanSource", "delete")
            .option("maxFileAge", _FILE_AGE_MAX)
            .load(f"{self._folder}/increments")
        )

    def fetch(self) -> bool:
        """Fetch the rows beyond the position; returns whether there were any.

        Raises the errors of Spark or of the database.
        """
        from pyspark.sql import functions as f

        rows = jdbc.table(self._session, self._source, self._source.table)
        column = next(name for name in rows.columns if name.lower() == self._source.increment.lower())
        highest = self._highest(column)
        if highest is None or (self._value is not None and highest <= self._value):  # type: ignore[operator]
            return False
        wanted = rows.where(f.col(f"`{column}`") <= f.lit(highest))
        start = self._value if self._value is not None else self._source.start
        if start is not None:
            kind = rows.schema[column].dataType
            wanted = wanted.where(f.col(f"`{column}`") > f.lit(start).cast(kind))
        number = self._number + 1
        fetching = f"{self._folder}/{_FETCHING}{number}"
        wanted.write.mode("overwrite").parquet(fetching)
        self._files.replace(f"{self._folder}/position", encode_position(number, highest).encode())
        self._number, self._value = number, highest
        self._files.rename(fetching, f"{self._folder}/increments/{number:010}")
        return True

    def _highest(self, column: str) -> Value | None:
        """The column's highest value, computed by the database, which may have an index."""
        dialect = jvm.jdbc_dialect(self._session, self._source.jdbc.reveal())
        text = f"SELECT MAX({dialect.quoteIdentifier(column)}) AS headwater_highest FROM {self._source.table}"  # noqa: S608
        row = jdbc.query(self._session, self._source, text).first()
        value: Value | None = None if row is None else row[0]
        # Spark returns moments in this process's time zone without an offset; the next run may use another time zone.
        return value.astimezone(dt.UTC) if isinstance(value, dt.datetime) else value

    def follow(self, on_failure: Callable[[BaseException], None]) -> None:
        """Fetch periodically on a separate thread until `close`. An error ends the thread and goes to `on_failure`."""
        wait_s = interval_ms(self._source.poll) / 1000

        def run() -> None:
            try:
                while not self._stop.wait(wait_s):
                    self.fetch()
            except Exception as error:  # noqa: BLE001 - handed on
                if not self._stop.is_set():
                    on_failure(error)

        self._thread = threading.Thread(target=run, name=f"jdbc-{self._source.table}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread after the current increment."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None


def encode_position(number: int, value: Value) -> str:
    """The position as JSON, including the value's type.

    >>> encode_position(3, 17)
    '{"increment": 3, "type": "int", "value": "17"}'
    """
    text = value.isoformat() if isinstance(value, dt.date) else str(value)
    return json.dumps({"increment": number, "type": type(value).__name__, "value": text})


def decode_position(text: str) -> tuple[int, Value]:
    """The increment's number and the column's value.

    >>> decode_position(encode_position(3, decimal.Decimal("1.50")))
    (3, Decimal('1.50'))
    """
    parsers: dict[str, Callable[[str], Value]] = {
        "int": int,
        "float": float,
        "str": str,
        "Decimal": decimal.Decimal,
        "datetime": dt.datetime.fromisoformat,
        "date": dt.date.fromisoformat,
    }
    found = json.loads(text)
    return int(found["increment"]), parsers[found["type"]](found["value"])


class JdbcSourceKind:
    """See `SourceKind`."""

    def columns(self, session: SparkSession, _loaded: Loaded, source: JdbcSource, _known: KnownColumns) -> StructType:
        """The table's columns from the database."""
        return jdbc.table(session, source, source.table).schema

    def empty(
        self,
        session: SparkSession,
        _source: JdbcSource,
        _known: KnownColumns,
        schema: StructType | None,
    ) -> DataFrame:
        """An empty frame of the columns."""
        return no_rows(session, schema)

    def stream(self, at: StageInput, source: JdbcSource, running: Running) -> DataFrame:
        """The increments; the first is fetched here."""
        folder = f"{running.checkpoint}/headwater/input-{at.position}"
        feed = JdbcFeed(at.session, source, folder, nullable(at.schema))
        running.feeds.append(feed)
        feed.open()
        feed.fetch()
        return feed.stream()

    def read_again(self, at: StageInput, source: JdbcSource, plan: Any) -> None:
        """None: no row is refused."""

    def sample(self, at: StageInput, source: JdbcSource, wanted: Sample) -> tuple[DataFrame, None]:
        """The first rows of the table."""
        table = jdbc.table(at.session, source, source.table)
        if source.start is not None:
            table = table.where(table[source.increment] > source.start)
        return table.limit(wanted.rows_max), None
