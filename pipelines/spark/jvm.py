"""Access to Spark's objects in the JVM where PySpark has no equivalent.

Beside `jvm_delta` this is the only module that uses PySpark's private attributes for the JVM (`_jvm`, `_jdf`, `_jsq`
and so on). The JVM methods it calls are no public interface of Spark or Delta: each function names the classes that it
depends on, as a guide for version upgrades. Results are typed `Any`: JVM objects, each method of which is a call over
py4j.
"""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.types import StructType

# -- the process -----------------------------------------------------------------------------------------------------


def java_process() -> subprocess.Popen[bytes] | None:
    """The JVM that PySpark launched, running or ended; None without one. Depends on `SparkContext._gateway.proc`."""
    from pyspark import SparkContext

    gateway = SparkContext._gateway
    return None if gateway is None else gateway.proc


def close_gateway() -> subprocess.Popen[bytes] | None:
    """Close the connection to the JVM, so that a later session launches another JVM. Returns the JVM, which still runs.

    Depends on `SparkContext` launching a JVM whenever its `_gateway` is None.
    """
    from pyspark import SparkContext

    gateway = SparkContext._gateway
    if gateway is None:
        return None
    SparkContext._gateway = SparkContext._jvm = None
    gateway.shutdown()
    return gateway.proc  # type: ignore[no-any-return]


def java_thread(spark: SparkSession) -> Any:
    """The thread of the JVM that runs the calls of this Python thread: a `java.lang.Thread`, for `interrupt()`.

    Depends on pinned threads (PYSPARK_PIN_THREAD), PySpark's default: each Python thread has one of its own.
    """
    jvm: Any = spark._jvm
    return jvm.java.lang.Thread.currentThread()


def activate(spark: SparkSession) -> None:
    """Make a session the active one of this thread, which Python's threads lack.

    Catalyst reads some settings once, from the active session of the thread that asks first: the name of the database
    of global temporary views is one (`LookupCatalog`).
    """
    jvm: Any = spark._jvm
    jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(spark._jsparkSession)


# -- plans -----------------------------------------------------------------------------------------------------------


def parsed_plan(spark: SparkSession, text: str) -> Any:
    """A statement's plan as it is parsed, which resolves nothing and runs nothing: by `SessionState.sqlParser`."""
    return spark._jsparkSession.sessionState().sqlParser().parsePlan(text)


def analyzed_plan(frame: DataFrame) -> Any:
    """A frame's analysed logical plan: Catalyst's `LogicalPlan`, from `Dataset.queryExecution`."""
    return frame._jdf.queryExecution().analyzed()


def expressions(frame: DataFrame) -> Iterator[tuple[str, bool]]:
    """The expressions of a frame's topmost operator, innermost first: the class, and whether it is deterministic.

    An expression is not deterministic if one within it is not. Depends on `QueryPlan.expressions`,
    `Expression.deterministic` and `TreeNode.children`.
    """

    def below(of: Any) -> Iterator[tuple[str, bool]]:
        children = of.children()
        for position in range(children.size()):
            yield from below(children.apply(position))
        yield str(of.getClass().getSimpleName()), bool(of.deterministic())

    top = analyzed_plan(frame).expressions()
    for position in range(top.size()):
        yield from below(top.apply(position))


def physical_plan_text(frame: DataFrame) -> str:
    """A frame's physical plan as text: `QueryExecution.executedPlan`, with the names of Spark's nodes."""
    return str(frame._jdf.queryExecution().executedPlan().toString())


def shares_relations(frame: DataFrame) -> bool:
    """Whether a query scans a data source relation of topics, or uses a CTE, more than once.

    Depends on `QueryExecution.analyzed`, `QueryPlan.subqueriesAll`, `DataSourceV2Relation` and `CTERelationRef`.
    """
    plan = analyzed_plan(frame)
    below = plan.subqueriesAll()
    uses: Counter[tuple[str, int]] = Counter()
    jvm: Any = frame.sparkSession._jvm
    for each in (plan, *(below.apply(position) for position in range(below.size()))):
        leaves = each.collectLeaves()
        for position in range(leaves.size()):
            leaf = leaves.apply(position)
            kind = leaf.getClass().getSimpleName()
            if kind == "DataSourceV2Relation" and any(map(leaf.options().containsKey, ("subscribe", "assign"))):
                uses[kind, jvm.java.lang.System.identityHashCode(leaf.table())] += 1
            elif kind == "CTERelationRef":
                uses[kind, leaf.cteId()] += 1
    return any(count > 1 for count in uses.values())


def drops_rows_of_both(spark: SparkSession, join: Any) -> bool:
    """Whether a join of streams (Catalyst's `Join`) lets Spark drop old rows of both sides from its state.

    Depends on `StreamingJoinHelper.isWatermarkInJoinKeys` and `getStateValueWatermark`, by which Spark decides it.
    """
    jvm: Any = spark._jvm
    helper = jvm.org.apache.spark.sql.catalyst.analysis.StreamingJoinHelper
    if helper.isWatermarkInJoinKeys(join):
        return True
    sides = join.left().outputSet(), join.right().outputSet()
    some = jvm.scala.Option.apply(1 << 40)  # any watermark, as a Long
    return all(
        helper.getStateValueWatermark(one, other, join.condition(), some).isDefined()
        for one, other in (sides, sides[::-1])
    )


def plan_bytes(frame: DataFrame) -> int:
    """Spark's estimate of a frame's size in bytes: that of its files, if it only reads them (`Statistics`)."""
    return int(str(frame._jdf.queryExecution().optimizedPlan().stats().sizeInBytes()))


def python_scan_partitions(frame: DataFrame, source: str) -> list[list[bytes]]:
    """The pickled input partitions of each scan of a Python data source in a frame's physical plan, as planned.

    Depends on the node `BatchScan NAME`, its `inputPartitions`, `PythonInputPartition` and `AdaptiveSparkPlanExec`.
    """
    scans: list[list[bytes]] = []
    waiting = [frame._jdf.queryExecution().executedPlan()]
    while waiting:
        plan = waiting.pop()
        if plan.nodeName() == "AdaptiveSparkPlan":
            plan = plan.initialPlan()
        leaves, subqueries = plan.collectLeaves(), plan.subqueriesAll()
        waiting += [subqueries.apply(position) for position in range(subqueries.size())]
        for position in range(leaves.size()):
            leaf = leaves.apply(position)
            if leaf.nodeName() == "AdaptiveSparkPlan":
                waiting.append(leaf)  # of a subquery
            elif leaf.nodeName() == f"BatchScan {source}":
                partitions = leaf.inputPartitions()
                pickled = [partitions.apply(number).pickedPartition() for number in range(partitions.size())]
                scans.append([bytes(one) for one in pickled])
    return scans


def find_python_sources(spark: SparkSession) -> None:
    """Let Spark look for Python's data sources, as it does once in a JVM: a query that is cancelled at its first look
    leaves a JVM without any. Depends on `SessionState.dataSourceManager` and `DataSourceManager.dataSourceExists`.
    """
    spark._jsparkSession.sessionState().dataSourceManager().dataSourceExists("headwater")


def table_options(spark: SparkSession, name: str, provider: str) -> dict[str, str] | None:
    """The options of a table of a data source in the current schema; None for another, a temporary view, or none.

    Depends on `SessionCatalog.isTempView`, `tableExists`, `getTableMetadata` and `CatalogTable.storage.properties`.
    """
    jvm: Any = spark._jvm
    catalog = spark._jsparkSession.sessionState().catalog()
    table = jvm.org.apache.spark.sql.catalyst.TableIdentifier(name)
    if catalog.isTempView(table) or not catalog.tableExists(table):
        return None
    found = catalog.getTableMetadata(table)
    if not found.provider().isDefined() or found.provider().get().lower() != provider:
        return None
    options = jvm.scala.jdk.javaapi.CollectionConverters.asJava(found.storage().properties())
    return {str(key): str(options[key]) for key in options}


def table_location(spark: SparkSession, schema: str, name: str) -> str | None:
    """Where a table of the session's catalog has its files, as Hadoop writes it; '' for none, None without a table.

    Depends on `SessionCatalog.tableExists`, `getTableMetadata` and `CatalogTable.storage.locationUri`.
    """
    jvm: Any = spark._jvm
    catalog = spark._jsparkSession.sessionState().catalog()
    table = jvm.org.apache.spark.sql.catalyst.TableIdentifier(name, jvm.scala.Option.apply(schema))
    if not catalog.tableExists(table):
        return None
    found = catalog.getTableMetadata(table).storage().locationUri()
    return str(jvm.org.apache.hadoop.fs.Path(found.get()).toString()) if found.isDefined() else ""


def temporary_views(spark: SparkSession, global_schema: str | None) -> frozenset[tuple[str, ...]]:
    """The names of the session's temporary views in lower case; those of global ones begin with `global_schema`.

    With None, global ones are left out.

    Depends on `SessionCatalog.getTempViewNames` and `GlobalTempViewManager.listViewNames`.
    """
    catalog = spark._jsparkSession.sessionState().catalog()
    local = catalog.getTempViewNames()
    found: set[tuple[str, ...]] = {(str(local.apply(position)).lower(),) for position in range(local.size())}
    if global_schema is None:
        return frozenset(found)
    shared = catalog.globalTempViewManager().listViewNames("*")
    found.update((global_schema, str(shared.apply(position)).lower()) for position in range(shared.size()))
    return frozenset(found)


def list_files_again(frame: DataFrame) -> None:
    """List the files of a folder again, for every plan that contains this frame's plan.

    Depends on `LogicalRelation` holding a `HadoopFsRelation`, whose `FileIndex` all frames derived from this one share.
    """
    leaves = analyzed_plan(frame).collectLeaves()
    for position in range(leaves.size()):
        leaf = leaves.apply(position)
        if leaf.nodeName() == "LogicalRelation":
            leaf.relation().location().refresh()


def json_columns(spark: SparkSession, texts: DataFrame) -> StructType:
    """The columns of JSON texts in a frame of one string column; invalid texts are ignored.

    Depends on `DataFrameReader.json(Dataset[String])`, which only the JVM's reader has, and on `Encoders.STRING`.
    """
    from pyspark.sql import DataFrame

    jvm: Any = spark._jvm
    typed = getattr(texts._jdf, "as")(jvm.org.apache.spark.sql.Encoders.STRING())
    return DataFrame(spark._jsparkSession.read().option("mode", "DROPMALFORMED").json(typed), spark).schema


# -- streaming queries -----------------------------------------------------------------------------------------------


def logged_offsets(session: SparkSession, query: str, batch: int) -> tuple[str | None, ...]:
    """The end offset of each source of a micro-batch as the offset log's JSON; None for a source without data yet.

    `session` is the session that started the query. Depends on `StreamExecution.offsetLog`, an `OffsetSeqLog`.
    """
    entry = session._jsparkSession.streams().get(query).streamingQuery().offsetLog().get(batch)
    assert entry.isDefined(), f"micro-batch {batch} runs and is not in the offset log"
    offsets = entry.get().offsets()
    found = [offsets.apply(source) for source in range(offsets.size())]
    return tuple(str(offset.get().json()) if offset.isDefined() else None for offset in found)


def last_progress(query: StreamingQuery) -> Any | None:
    """The latest progress of a query: a `StreamingQueryProgress`, a public class; None before the first.

    PySpark's own `lastProgress` parses the whole JSON on each call.
    """
    return query._jsq.lastProgress()


def recent_progress(query: StreamingQuery) -> Any:
    """The last progresses of a query, oldest first and unparsed: a Java array of `StreamingQueryProgress`."""
    return query._jsq.recentProgress()


def last_execution(session: SparkSession, query: str) -> Any:
    """The execution of a query's current micro-batch: `StreamExecution.lastExecution`, an `IncrementalExecution`.

    `session` is the session that started the query.
    """
    return session._jsparkSession.streams().get(query).streamingQuery().lastExecution()


def observed(execution: Any, name: str) -> Any | None:
    """The metrics of `DataFrame.observe` (`QueryExecution.observedMetrics`): a Scala `Row`; None if not available."""
    row = execution.observedMetrics().get(name)
    return row.get() if row.isDefined() else None


def dropping_watermark_ms(execution: Any) -> int | None:
    """The watermark by which a computed micro-batch's first stateful operator dropped rows; None if it dropped none.

    Depends on the metric `numRowsDroppedByWatermark` and on `WatermarkSupport.eventTimeWatermarkForLateEvents` of
    physical operators that drop rows. Of the two of a session window the one below, which restores the state, drops.
    """
    for node in _from_below(execution.executedPlan()):
        dropped = node.metrics().get("numRowsDroppedByWatermark")
        if dropped.isDefined():
            watermark = node.eventTimeWatermarkForLateEvents()
            return int(watermark.get()) if dropped.get().value() and watermark.isDefined() else None
    return None


def _from_below(plan: Any) -> Iterator[Any]:
    """The nodes of a plan, children first."""
    children = plan.children()
    for position in range(children.size()):
        yield from _from_below(children.apply(position))
    yield plan


# -- file systems ----------------------------------------------------------------------------------------------------


def hadoop_path(spark: SparkSession, path: str) -> Any:
    """A path as Hadoop's `org.apache.hadoop.fs.Path`, a public class."""
    jvm: Any = spark._jvm
    return jvm.org.apache.hadoop.fs.Path(path)


def hadoop_form(spark: SparkSession, path: str) -> str:
    """A path as Hadoop writes it: `file:/lake` for `file:///lake`, which Delta takes for another place."""
    return str(hadoop_path(spark, path).toString())


def qualified_path(spark: SparkSession, path: str) -> str:
    """A path with its scheme and from the root, as Hadoop writes it: by `FileSystem.makeQualified`, which is public."""
    found = hadoop_path(spark, path)
    system = found.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf())
    return str(system.makeQualified(found).toString())


def hadoop_configuration(spark: SparkSession) -> tuple[Any, Any]:
    """The gateway to the JVM, and Hadoop's `Configuration` of a session, by Spark's `SessionState.newHadoopConf`."""
    context: Any = spark.sparkContext
    return context._gateway, spark._jsparkSession.sessionState().newHadoopConf()


# -- JDBC ------------------------------------------------------------------------------------------------------------


def jdbc_dialect(spark: SparkSession, url: str) -> Any:
    """Spark's dialect of a database's SQL: a `JdbcDialect`, which `JdbcDialects` (both public) selects by the URL."""
    jvm: Any = spark._jvm
    return jvm.org.apache.spark.sql.jdbc.JdbcDialects.get(url)


def jdbc_connection(spark: SparkSession, dialect: Any, options: Mapping[str, str]) -> Any:
    """A new connection from the driver, a `java.sql.Connection`.

    Depends on `JdbcDialect.createConnectionFactory` taking the partition -1 for the driver.
    """
    return dialect.createConnectionFactory(_jdbc_options(spark, options)).apply(-1)


def jdbc_table_exists(spark: SparkSession, connection: Any, options: Mapping[str, str]) -> bool:
    """Whether the table `dbtable` of the options exists. Depends on `JdbcUtils.tableExists`."""
    jvm: Any = spark._jvm
    utils = jvm.org.apache.spark.sql.execution.datasources.jdbc.JdbcUtils
    return bool(utils.tableExists(connection, _jdbc_options(spark, options)))


def _jdbc_options(spark: SparkSession, options: Mapping[str, str]) -> Any:
    """Options in the form of Spark's JDBC sink: `JdbcOptionsInWrite`."""
    jvm: Any = spark._jvm
    scala = jvm.org.apache.spark.api.python.PythonUtils.toScalaMap(dict(options))
    return jvm.org.apache.spark.sql.execution.datasources.jdbc.JdbcOptionsInWrite(scala)
