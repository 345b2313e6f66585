"""Writes rows to a database's table, once a micro-batch.

Tasks cannot share a transaction. They write the batch to a staging table; then the driver, in one transaction, moves
the rows to the target and writes the batch's number to `headwater_batches`. A batch whose number is already recorded
for its table is skipped. Only standard SQL is used: rows replace other rows of their key by a DELETE and an INSERT.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from headwater.pipelines.errors import PipelineFailed
from headwater.pipelines.sinks import jdbc_order
from headwater.pipelines.sinks.stored_rows import (
    DELETED,
    latest_of_each,
    with_deleted,
    without_origin,
    without_underscored,
)
from headwater.pipelines.sources import jdbc as source
from headwater.pipelines.spark import jvm

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameWriter, SparkSession

    from headwater.pipelines.definition import JdbcSink, Loaded, Stage
    from headwater.pipelines.sinks.kind import BatchWrite, Encodings

BATCHES: Final = "headwater_batches"
_STAGED: Final = "headwater_"  # followed by a hash of the writer: a name valid in every database
_WRITER_LENGTH: Final = 255


def table_rows(rows: DataFrame, sink: JdbcSink) -> DataFrame:
    """The rows to write or delete, one per key if keys are declared: data columns and DELETED."""
    return _stored(_changes(rows, sink), sink)


def _stored(changes: DataFrame, sink: JdbcSink) -> DataFrame:
    """Changes without the columns that the table does not have."""
    return without_underscored(without_origin(changes, but_for=sink.keys), sink.underscore_columns, sink.columns_kept)


def _changes(rows: DataFrame, sink: JdbcSink) -> DataFrame:
    marked = with_deleted(rows, sink.delete_when)
    return latest_of_each(marked, sink.keys, sink.sequence) if sink.keys else marked


def write(rows: DataFrame, sink: JdbcSink, app_id: str, batch_id: int) -> None:
    """Write one micro-batch unless the database already has it. Raises the errors of Spark or of the database."""
    database = _Database(rows.sparkSession, sink)
    writer = writer_of(app_id, sink.table)
    with database.connected():
        database.make_batches_table()
        if max(database.committed(writer), database.committed(app_id)) >= batch_id:
            return  # earlier versions wrote one number for all tables of a stage
    found = _changes(rows, sink)
    held = [name for name in _stored(found, sink).columns if name != DELETED]
    ordered = jdbc_order.with_order(found, sink.sequence).drop(*(set(found.columns) - {*held, *sink.keys, DELETED}))
    staged = beside(sink.table, _STAGED + jdbc_order.short_hash(writer))
    last = beside(sink.table, jdbc_order.last_name(sink.table, sink.keys, sink.sequence))
    options = source.options(sink)
    if sink.underscore_columns == "omit":
        options = jdbc_order.of_columns(options, ordered.columns)
    typed = jdbc_order.column_types(ordered, options) if sink.sequence else options
    staging = ordered.write.format("jdbc").options(**typed)
    staging.option("dbtable", staged).mode("overwrite").save()
    with database.connected():
        # No rows: outside the transaction only the tables themselves are created.
        empty = found.select(*(f"`{name}`" for name in held)).limit(0).write.format("jdbc").options(**options)
        if sink.sequence:
            # The stage's, of whichever checkpoint: the next attempt may come after a reset.
            database.make_ordered_target(empty, last, writer_of(f"left {app_id.rpartition('/')[0]}", last))
        elif not database.has(sink.table):
            database.made(sink.table, empty)
        if sink.sequence and not database.has(last):
            names = (*sink.keys, *jdbc_order.names(sink.sequence), DELETED)
            kept = ordered.select(*(f"`{name}`" for name in names)).limit(0)
            of_last = jdbc_order.column_types(kept, jdbc_order.of_columns(options, names))
            kept.write.format("jdbc").options(**of_last).option("dbtable", last).mode("append").save()
            database.make_index(last, sink.keys)
    columns = database.columns(held)
    with database.connected() as connection:
        connection.setAutoCommit(False)
        try:
            for statement in database.statements(staged, last, columns):
                database.execute(statement)
            database.commit(writer, batch_id)
            connection.commit()
        except BaseException:
            connection.rollback()
            raise
        connection.setAutoCommit(True)
        database.execute(f"DROP TABLE {staged}")


def writer_of(app_id: str, table: str) -> str:
    """The writer that counts batches: checkpoint and table, as each table gets a batch in its own transaction.

    >>> writer_of("headwater/p/s/1", "Shop.Orders")
    'headwater/p/s/1 shop.orders'
    """
    whole = f"{app_id} {table.lower()}"
    return whole if len(whole) <= _WRITER_LENGTH else f"headwater/{hashlib.sha256(whole.encode()).hexdigest()}"


def beside(table: str, name: str) -> str:
    """A table's name in the schema of another table.

    >>> beside("shop.orders", "x"), beside("orders", "x")
    ('shop.x', 'x')
    """
    schema, dot, _ = table.rpartition(".")
    return f"{schema}{dot}{name}"


class _Database:
    """Statements to a database over one connection from the driver."""

    def __init__(self, spark: SparkSession, sink: JdbcSink) -> None:
        self._spark = spark
        self._sink = sink
        self._connection: Any = None
        self._batches = beside(sink.table, BATCHES)
        self._dialect = jvm.jdbc_dialect(spark, sink.jdbc.reveal())

    @contextmanager
    def connected(self) -> Iterator[Any]:
        """A connection for a few statements. Each statement is its own transaction unless the caller begins one."""
        self._connection = jvm.jdbc_connection(self._spark, self._dialect, self._options(self._sink.table))
        try:
            yield self._connection
        finally:
            self._connection.close()

    def _options(self, table: str) -> dict[str, str]:
        return {**source.options(self._sink), "dbtable": table}

    def has(self, table: str) -> bool:
        """Whether a table exists. Without the right to read a table, Spark reports it as missing."""
        return jvm.jdbc_table_exists(self._spark, self._connection, self._options(table))

    def made(self, table: str, rows: DataFrameWriter) -> bool:
        """Create a table for rows; False if another stage has created it meanwhile. Raises Spark's or the database's
        errors.

        Only a successful CREATE proves that the table did not exist.
        """
        from py4j.protocol import Py4JJavaError
        from pyspark.errors import PySparkException

        try:
            rows.option("dbtable", table).mode("errorifexists").save()
        except (Py4JJavaError, PySparkException):
            if not self.has(table):
                raise
            return False
        return True

    def make_ordered_target(self, rows: DataFrameWriter, last: str, mark: str) -> None:
        """Create the target for rows if it does not exist. Its `last` is dropped then: it is of a removed target.

        The row `mark` among the batches is written before the target is created, and removed when it is known whose
        `last` is. If a crash comes between, the next attempt finds the mark beside the target, and drops `last`.
        """
        if not self.has(self._sink.table):
            if self.has(last):  # looked for before another stage can create it again
                self.commit(mark, 0)
            is_new = False
            try:
                is_new = self.made(self._sink.table, rows)
            finally:
                if not is_new:
                    self._forget(mark)  # another stage has created the target, and `last` may be its own
        if self.committed(mark) >= 0:
            if self.has(last):
                self.execute(f"DROP TABLE {last}")
            self._forget(mark)

    def _forget(self, app_id: str) -> None:
        """Remove a writer's row from the batches."""
        self.execute(f"DELETE FROM {self._batches} WHERE writer = ?", app_id)  # noqa: S608

    def execute(self, statement: str, *values: str | int) -> int:
        """Run a statement; returns the number of changed rows."""
        prepared = self._prepared(statement, values)
        try:
            return int(prepared.executeUpdate())
        finally:
            prepared.close()

    def _prepared(self, statement: str, values: Sequence[str | int]) -> Any:
        prepared = self._connection.prepareStatement(statement)
        for position, value in enumerate(values, 1):
            (prepared.setString if isinstance(value, str) else prepared.setLong)(position, value)
        return prepared

    def make_batches_table(self) -> None:
        """Create the table of batch numbers if it does not exist."""
        if not self.has(self._batches):
            self.execute(
                f"CREATE TABLE {self._batches} "
                f"(writer VARCHAR({_WRITER_LENGTH}) NOT NULL PRIMARY KEY, batch BIGINT NOT NULL)"
            )

    def make_index(self, table: str, names: Sequence[str]) -> None:
        """Create an index if the database supports it: many cannot index long text. The index only improves speed."""
        from py4j.protocol import Py4JJavaError

        with suppress(Py4JJavaError):
            self.execute(jdbc_order.index_statement(table, names, self._dialect.quoteIdentifier))

    def committed(self, app_id: str) -> int:
        """The number of a writer's last committed batch; -1 without any."""
        prepared = self._prepared(f"SELECT batch FROM {self._batches} WHERE writer = ?", [app_id])  # noqa: S608
        try:
            found = prepared.executeQuery()
            return int(found.getLong(1)) if found.next() else -1
        finally:
            prepared.close()

    def commit(self, app_id: str, batch_id: int) -> None:
        """Write a batch's number, within the transaction of its rows."""
        changed = self.execute(f"UPDATE {self._batches} SET batch = ? WHERE writer = ?", batch_id, app_id)  # noqa: S608
        if not changed:
            self.execute(f"INSERT INTO {self._batches} (writer, batch) VALUES (?, ?)", app_id, batch_id)  # noqa: S608

    def columns(self, names: Sequence[str]) -> dict[str, str]:
        """The rows' columns by name, each with its name in the target, which may differ in case.

        Raises ValueError if the target lacks a column.
        """
        known = {name.lower(): name for name in source.table(self._spark, self._sink, self._sink.table).columns}
        missing = [name for name in names if name.lower() not in known]
        if missing:
            raise ValueError(f"the table {self._sink.table} has no column {', '.join(missing)}")
        return {name: known[name.lower()] for name in names}

    def statements(self, staged: str, last: str, columns: dict[str, str]) -> list[str]:
        """SQL that moves the staged rows to the target; `last` is the table of each key's last change."""
        sink = self._sink

        def quoted(name: str) -> str:
            return str(self._dialect.quoteIdentifier(name))

        moved = move_statements(sink.table, staged, columns, sink.keys, quoted)
        if not sink.sequence:
            return moved
        ordering = jdbc_order.Ordering(sink.table, staged, last, columns, sink.keys, sink.sequence, quoted)
        return [*ordering.passed_over(), *moved, *ordering.remembered(DELETED)]


def move_statements(target: str, staged: str, columns: dict[str, str], keys: Sequence[str], quoted: Any) -> list[str]:
    """SQL that moves staged rows into a table: replaces rows of the same keys, omits deleted rows.

    >>> move_statements("t", "s", {"id": "ID", "n": "N"}, ["id"], lambda name: f'"{name}"')[0]
    'DELETE FROM t WHERE EXISTS (SELECT 1 FROM s WHERE (s."id" = t."ID" OR (s."id" IS NULL AND t."ID" IS NULL)))'
    """
    statements = []
    if keys:
        same = []
        for key in keys:
            theirs, ours = f"{staged}.{quoted(key)}", f"{target}.{quoted(jdbc_order.target_column(columns, key))}"
            same.append(f"({theirs} = {ours} OR ({theirs} IS NULL AND {ours} IS NULL))")
        statements.append(f"DELETE FROM {target} WHERE EXISTS (SELECT 1 FROM {staged} WHERE {' AND '.join(same)})")  # noqa: S608
    into = ", ".join(quoted(name) for name in columns.values())
    given = ", ".join(quoted(name) for name in columns)
    statements.append(
        f"INSERT INTO {target} ({into}) SELECT {given} FROM {staged} WHERE {quoted(DELETED)} = 0"  # noqa: S608
    )
    return statements


def check(rows: DataFrame, sink: JdbcSink) -> None:
    """Check that the rows can be written. Raises ValueError or Spark's errors."""
    from pyspark.sql.types import ArrayType, MapType, StructType

    found = table_rows(rows, sink)
    if sink.sequence:
        jdbc_order.with_order(_changes(rows, sink), sink.sequence).schema  # noqa: B018 - analysed here
    for field in found.schema.fields:
        if isinstance(field.dataType, ArrayType | MapType | StructType):
            what = field.dataType.simpleString()
            raise ValueError(f"the column {field.name} is {what[:60]}, which a database's table cannot hold")


class JdbcKind:
    """See `SinkKind`."""

    def check(self, _loaded: Loaded, sink: JdbcSink, rows: DataFrame, _encodings: Encodings) -> None:
        """Check that databases support the columns' types, without a connection to the database."""
        check(rows, sink)

    def shown(self, sink: JdbcSink, rows: DataFrame, _encodings: Encodings) -> DataFrame:
        """The table's rows, with their delete flag."""
        return table_rows(rows, sink)

    def stored(self, sink: JdbcSink, rows: DataFrame) -> None:
        """None: readers get the columns from the database."""

    def writer(self, loaded: Loaded, stage: Stage, sink: JdbcSink) -> BatchWrite:
        """A function that writes each micro-batch in one transaction."""

        def write_batch(rows: DataFrame, app_id: str, batch_id: int) -> None:
            from py4j.protocol import Py4JError
            from pyspark.errors import PySparkException

            from headwater.pipelines.spark.spark_errors import first_line

            try:
                write(rows, sink, app_id, batch_id)
            except (PySparkException, Py4JError, ValueError) as error:
                # A driver's message may contain the URL with its password.
                said = loaded.redacted(first_line(error))
                raise PipelineFailed(f"stage {stage.name}: the table {sink.table}: {said}") from None

        return write_batch
