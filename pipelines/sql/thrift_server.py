"""Spark's Thrift server in the JVM of a session: HiveServer2's protocol, for JDBC, ODBC and Hive clients.

Each connection has a session of its own: temporary views and settings are its own; the catalog and global temporary
views are those of the JVM. A client's user name is not checked, and everything runs as this process's user.
"""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from headwater.pipelines.spark import jvm_servers
from headwater.pipelines.spark.session import DELTA_PACKAGE, PACKAGES_CONF, close_session, open_session, with_delta
from headwater.pipelines.spark.spark_errors import first_line
from headwater.pipelines.sql.loopback import CONNECTIONS_MAX, LOCALHOST, ServerRefusedError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["ThriftServer", "open_served_session", "thrift_conf"]

_DELTA_CATALOG: Final = "org.apache.spark.sql.delta.catalog.DeltaCatalog"
_CLASS_PATH: Final = "spark.driver.extraClassPath"
#: Where Spark's Ivy leaves the jars of `spark.jars.packages`, unless `spark.jars.ivy` names another folder: below
#: Java's `user.home`, which is not the variable HOME.
_IVY: Final = os.path.join(pwd.getpwuid(os.getuid()).pw_dir, ".ivy2.5.2")
_DELTA_JAR: Final = "io.delta_delta-"


def thrift_conf() -> dict[str, str]:
    """The settings of a session with a Thrift server: clients fetch a result by partitions, not as a whole."""
    return {"spark.sql.thriftServer.incrementalCollect": "true"}


def delta_jars(folder: str) -> list[str]:
    """The paths that Delta's jars have in a folder of Ivy's.

    >>> delta_jars("/ivy")[0]
    '/ivy/jars/io.delta_delta-spark_4.2_2.13-4.4.0.jar'
    """
    group, artifact, version = DELTA_PACKAGE.split(":")
    return [os.path.join(folder, "jars", f"{group}_{name}-{version}.jar") for name in (artifact, "delta-storage")]


def open_served_session(name: str, log_path: str, extra: Mapping[str, str]) -> SparkSession:
    """`open_session` for a JVM with a Thrift server: Delta's jars are known to the JVM's own class loader.

    The threads in which Hive's classes open a JDBC client's session have that class loader, and Spark loads Delta's
    catalog there (ClassNotFoundException otherwise). The jars' paths are known when Spark has fetched them: at the
    first start on a machine, the JVM is started a second time. Raises SessionError.
    """
    jars = delta_jars(extra.get("spark.jars.ivy", _IVY))
    is_own = DELTA_PACKAGE in with_delta(extra.get(PACKAGES_CONF, ""))
    present = jars if is_own and all(map(os.path.exists, jars)) else []
    spark = open_session(name, log_path, _with_jars(extra, present))
    missing = only_delta(jvm_servers.jars_apart(spark, _DELTA_CATALOG))
    if missing:
        close_session()
        spark = open_session(name, log_path, _with_jars(extra, missing))
    return spark


def only_delta(paths: Iterable[str]) -> list[str]:
    """The paths of Delta's own jars. Those that it needs have other versions than Spark's, which come first then.

    >>> only_delta(["/ivy/jars/io.delta_delta-storage-4.4.0.jar", "/ivy/jars/com.fasterxml.jackson_core-2.jar"])
    ['/ivy/jars/io.delta_delta-storage-4.4.0.jar']
    """
    return [path for path in paths if os.path.basename(path).startswith(_DELTA_JAR)]


def _with_jars(extra: Mapping[str, str], jars: list[str]) -> dict[str, str]:
    """Settings with jars in front of the class path that they give.

    >>> _with_jars({"spark.driver.extraClassPath": "/a.jar"}, ["/b.jar"])
    {'spark.driver.extraClassPath': '/b.jar:/a.jar'}
    """
    paths = [*jars, *filter(None, [extra.get(_CLASS_PATH)])]
    return {**extra, _CLASS_PATH: os.pathsep.join(paths)} if paths else dict(extra)


class ThriftServer:
    """One server at a time in a JVM, on a free port of 127.0.0.1.

    `folder` is for the files that Hive's classes write, and ends with the service.
    """

    def __init__(self, spark: SparkSession, folder: str) -> None:
        self.port = 0
        self._spark = spark
        self._folder = os.path.abspath(folder)
        self._server: Any = None

    def start(self) -> int:
        """Serve; returns the port. Raises ServerRefusedError."""
        from py4j.protocol import Py4JJavaError

        assert self._server is None, "started twice"
        os.makedirs(self._folder, exist_ok=True)
        try:
            self._server = jvm_servers.start_thrift_server(self._spark, self._settings(), self._properties())
        except Py4JJavaError as error:
            raise ServerRefusedError(f"the Thrift server did not start: {first_line(error)}") from None
        self.port = jvm_servers.thrift_port(self._server)
        return self.port

    def stop(self) -> None:
        """Close the port, and end what its clients run."""
        if self._server is not None:
            jvm_servers.stop_thrift_server(self._server)
            self._server = None

    def _settings(self) -> dict[str, str]:
        return {
            "hive.server2.transport.mode": "binary",
            "hive.server2.authentication": "NONE",  # SASL PLAIN with any name: what clients do unless told otherwise
            "hive.server2.thrift.bind.host": LOCALHOST,
            "hive.server2.thrift.port": "0",
            "hive.server2.thrift.max.worker.threads": str(CONNECTIONS_MAX),
            # Hadoop would be asked to let this user act as the one whose name the client gives.
            "hive.server2.enable.doAs": "false",
            "hive.server2.logging.operation.log.location": os.path.join(self._folder, "operations"),
            "hive.exec.scratchdir": os.path.join(self._folder, "scratch"),
            "hive.exec.local.scratchdir": os.path.join(self._folder, "local"),
            "hive.downloaded.resources.dir": os.path.join(self._folder, "resources"),
            "hive.querylog.location": os.path.join(self._folder, "queries"),
        }

    def _properties(self) -> dict[str, str]:
        # Hive's classes open a Derby database in memory, and its log in the working folder.
        return {"derby.stream.error.file": os.path.join(self._folder, "derby.log")}
