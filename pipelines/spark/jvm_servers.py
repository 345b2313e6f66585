"""Private ways to the JVM for foreign clients: Spark's Thrift and Connect servers, views of the session catalog.

As in `jvm`, each function names the classes of Spark that it depends on.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = [
    "jars_apart",
    "replace_view",
    "start_connect_server",
    "start_thrift_server",
    "stop_connect_server",
    "stop_thrift_server",
    "thrift_port",
]

_CATALOG: Final = "spark_catalog"
_VIEW_FIELDS: Final = {"properties": 12, "viewText": 14, "viewOriginalText": 21}  # of CatalogTable, from 1
_DEFAULTS: Final = range(5, 23)  # the fields of CatalogTable that have defaults


def start_thrift_server(spark: SparkSession, settings: Mapping[str, str], properties: Mapping[str, str]) -> Any:
    """Start HiveServer2's protocol for the sessions of this JVM; returns the server.

    Args:
        settings: Of Hive; they stay in the session's Hadoop configuration.
        properties: System properties of the JVM.

    Depends on `HiveThriftServer2.startWithSparkSession(session, exitOnError)`. Raises Py4JJavaError.
    """
    jvm: Any = spark._jvm
    for name, value in properties.items():
        jvm.java.lang.System.setProperty(name, value)
    hadoop = spark.sparkContext._jsc.hadoopConfiguration()
    for name, value in settings.items():
        hadoop.set(name, value)
    servers = _object(jvm.org.apache.spark.sql.hive.thriftserver, "HiveThriftServer2")
    return servers.startWithSparkSession(spark._jsparkSession, False)


def jars_apart(spark: SparkSession, name: str) -> list[str]:
    """Paths of the jars of `spark.jars.packages`, if the JVM's own class loader does not know a class of them.

    Depends on Spark's class loader for such jars, `MutableURLClassLoader`.
    """
    from py4j.protocol import Py4JJavaError

    jvm: Any = spark._jvm
    try:
        jvm.java.lang.ClassLoader.getSystemClassLoader().loadClass(name)
    except Py4JJavaError:
        urls = jvm.java.lang.Thread.currentThread().getContextClassLoader().getURLs()
        return [str(url.getPath()) for url in urls if str(url.getPath()).endswith(".jar")]
    return []


def thrift_port(server: Any) -> int:
    """The port that a Thrift server listens on: `ThriftCLIService.getPortNumber`."""
    return next(int(each.getPortNumber()) for each in server.getServices() if "Thrift" in each.getName())


def stop_thrift_server(server: Any) -> None:
    """Close the port and the clients' sessions: `HiveServer2.stop`."""
    server.stop()


def start_connect_server(spark: SparkSession) -> int:
    """Start Spark Connect in this JVM as `SparkConnectPlugin` does; returns its port.

    Depends on `SparkConnectService.start`, which reads address and port from the settings of the Spark context. Raises
    Py4JJavaError.
    """
    service = _connect_service(spark)
    service.start(spark.sparkContext._jsc.sc())
    return int(service.localPort())


def stop_connect_server(spark: SparkSession) -> None:
    """Close the port and the clients' sessions: `SparkConnectService.stop`."""
    jvm: Any = spark._jvm
    at_once = jvm.scala.Option.empty()
    _connect_service(spark).stop(at_once, at_once)


def replace_view(
    spark: SparkSession, schema: str, name: str, text: str, frame: DataFrame, reads: Sequence[Sequence[str]] = ()
) -> None:
    """Create or replace a view of the session catalog, in one step for those who read it.

    `CREATE OR REPLACE VIEW` drops a view before it creates the new one, and refuses a view that reads a temporary one,
    which is all that a frame can become.

    Args:
        text: The view's statement.
        frame: What the statement gives now: its columns are those that clients are shown.
        reads: Names of the global temporary views that the statement reads.

    Depends on `ExternalCatalog.alterTable` replacing a definition, on `CatalogTable` and its `view.*` properties: with
    the schema mode EVOLUTION, a view has the columns of its statement.
    """
    jvm: Any = spark._jvm
    catalog = jvm.org.apache.spark.sql.catalyst.catalog
    table = _object(catalog, "CatalogTable")
    properties = jvm.java.util.HashMap()
    for key, value in (
        (table.VIEW_CATALOG_AND_NAMESPACE() + ".numParts", "2"),
        (table.VIEW_CATALOG_AND_NAMESPACE() + ".part.0", _CATALOG),
        (table.VIEW_CATALOG_AND_NAMESPACE() + ".part.1", "default"),
        (table.VIEW_SCHEMA_MODE(), "EVOLUTION"),
        (table.VIEW_REFERRED_TEMP_VIEW_NAMES(), json.dumps([list(each) for each in reads])),
    ):
        properties.put(key, value)
    given = {
        _VIEW_FIELDS["properties"]: jvm.PythonUtils.toScalaMap(properties),
        _VIEW_FIELDS["viewText"]: jvm.scala.Some(text),
        _VIEW_FIELDS["viewOriginalText"]: jvm.scala.Some(text),
    }
    definition = catalog.CatalogTable(
        jvm.org.apache.spark.sql.catalyst.TableIdentifier(name, jvm.scala.Some(schema), jvm.scala.Some(_CATALOG)),
        _object(catalog, "CatalogTableType").VIEW(),
        _object(catalog, "CatalogStorageFormat").empty(),
        frame._jdf.schema(),
        *(given[field] if field in given else getattr(table, f"apply$default${field}")() for field in _DEFAULTS),
    )
    external = spark._jsparkSession.sharedState().externalCatalog()
    if external.tableExists(schema, name):
        external.alterTable(definition)
    else:
        external.createTable(definition, False)


def _connect_service(spark: SparkSession) -> Any:
    jvm: Any = spark._jvm
    return _object(jvm.org.apache.spark.sql.connect.service, "SparkConnectService")


def _object(package: Any, name: str) -> Any:
    """A Scala object: in Java, the static field MODULE$ of the class with its name and a `$`."""
    return getattr(getattr(package, f"{name}$"), "MODULE$")
