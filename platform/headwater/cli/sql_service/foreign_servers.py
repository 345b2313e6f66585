"""The servers of JDBC, ODBC and Spark Connect in the service's JVM, and the views that their clients read."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

from headwater.cli.shell.output import note
from headwater.cli.sql.foreign_addresses import CONNECT, JDBC, SERVER_NAMES
from headwater.pipelines.spark import jvm
from headwater.pipelines.spark.session import lost_jvm
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
    """Makes views by a thread, for which the service's own queries do not wait. A server starts for its first client.

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
        self._ports: dict[str, int] = {}
        self._failure = ""
        self._lock = threading.Lock()
        self._has_views = threading.Event()
        self._thread = threading.Thread(target=self._make_views, name="foreign-servers", daemon=True)

    def start(self) -> None:
        """Begin; returns at once."""
        self._thread.start()

    def port(self, protocol: str, check: Callable[[], None]) -> int:
        """The port of a server, which is started if it does not serve yet. `check` is called meanwhile, and may raise.

        Raises ServerRefusedError; the next call tries again.
        """
        while not self._has_views.wait(LOOK_S):
            check()
        if self._failure:
            raise ServerRefusedError(f"the views of topics cannot be made: {self._failure}; restart the SQL service")
        with self._lock:
            if protocol not in self._ports:
                jvm.activate(self._spark)
                self._ports[protocol] = self._servers[protocol].start()
            return self._ports[protocol]

    def stop(self) -> None:
        """End servers and views. Of a JVM that is lost nothing remains to be ended."""
        self._views.stop()
        self._thread.join(STOP_SECONDS_MAX)
        for protocol in list(self._ports) if lost_jvm() is None else ():
            try:
                self._servers[protocol].stop()
            except Exception as error:  # noqa: BLE001 - the JVM ends next, and with it the server
                note(f"{SERVER_NAMES[protocol]} did not end in order: {first_line(error)}")

    def _make_views(self) -> None:
        try:
            self._views.start()
        except Exception as error:  # noqa: BLE001 - told to clients; the service's own queries run on
            self._failure = first_line(error)
        finally:
            self._has_views.set()
