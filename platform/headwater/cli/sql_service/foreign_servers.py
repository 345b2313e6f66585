"""The servers of JDBC, ODBC and Spark Connect in the service's JVM, and the views that their clients read."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, Protocol

from headwater.cli.sql.foreign_addresses import CONNECT, JDBC
from headwater.pipelines.spark import jvm
from headwater.pipelines.spark.spark_errors import first_line
from headwater.pipelines.sql.connect_server import ConnectServer
from headwater.pipelines.sql.foreign_views import ForeignViews
from headwater.pipelines.sql.loopback import ServerRefusedError
from headwater.pipelines.sql.thrift_server import ThriftServer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["ForeignServers"]

LOOK_S: Final = 0.2
STOP_SECONDS_MAX: Final = 60.0


class ForeignServer(Protocol):
    """A server that starts once."""

    def start(self) -> int:
        """Serve; returns the port. Raises ServerRefusedError."""

    def stop(self) -> None:
        """Close the port, and end what its clients run."""


class ForeignServers:
    """Starts the views and then the servers, by a thread: the service's own queries do not wait for them.

    The servers listen on ports of their own, on 127.0.0.1, which `foreign_ports` connects clients with.
    """

    def __init__(self, spark: SparkSession, views: ForeignViews, folder: str, protocols: frozenset[str]) -> None:
        """`folder` is for the files that Hive's classes write."""
        self._spark = spark
        self._views = views
        self._servers: dict[str, ForeignServer] = {}
        if JDBC in protocols:
            self._servers[JDBC] = ThriftServer(spark, os.path.join(folder, "hive"))
        if CONNECT in protocols:
            self._servers[CONNECT] = ConnectServer(spark)
        self._ports: Mapping[str, int] = {}
        self._failure = ""
        self._is_done = threading.Event()
        self._is_over = False
        self._thread = threading.Thread(target=self._start, name="foreign-servers", daemon=True)

    def start(self) -> None:
        """Begin; returns at once."""
        self._thread.start()

    def port(self, protocol: str, check: Callable[[], None]) -> int:
        """The port of a server, once it serves. `check` is called meanwhile, and may raise.

        Raises ServerRefusedError.
        """
        while not self._is_done.wait(LOOK_S):
            check()
        if self._failure:
            raise ServerRefusedError(self._failure)
        return self._ports[protocol]

    def stop(self) -> None:
        """End servers and views."""
        self._is_over = True
        self._views.stop()
        self._thread.join(STOP_SECONDS_MAX)
        for server in self._servers.values():
            server.stop()

    def _start(self) -> None:
        try:
            jvm.activate(self._spark)
            self._views.start()
            ports = {}
            for protocol, server in self._servers.items():
                if self._is_over:
                    return
                ports[protocol] = server.start()
            self._ports = ports
        except Exception as error:  # noqa: BLE001 - told to the clients' ports; the service's own queries run on
            self._failure = str(error) if isinstance(error, ServerRefusedError) else first_line(error)
        finally:
            self._is_done.set()
