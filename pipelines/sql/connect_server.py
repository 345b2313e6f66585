"""Spark Connect in the JVM of a session: remote sessions of PySpark and of Spark's other clients, by gRPC.

Each client has a session of its own; the catalog and global temporary views are those of the JVM.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headwater.pipelines.spark import jvm_servers
from headwater.pipelines.spark.spark_errors import first_line
from headwater.pipelines.sql.loopback import LOCALHOST, ServerRefusedError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["ConnectServer", "connect_conf"]

_ADDRESS: Final = "spark.connect.grpc.binding.address"
_PORT: Final = "spark.connect.grpc.binding.port"


def connect_conf() -> dict[str, str]:
    """The settings of a session that may start Spark Connect, on a free port: Spark reads them from its context.

    Without the address, Spark binds every address of the machine.
    """
    return {_ADDRESS: LOCALHOST, _PORT: "0"}


class ConnectServer:
    """One server at a time in a JVM, in a session with `connect_conf`."""

    def __init__(self, spark: SparkSession) -> None:
        assert spark.sparkContext.getConf().get(_ADDRESS) == LOCALHOST, "others must not reach it"
        self._spark = spark
        self.port = 0

    def start(self) -> int:
        """Serve; returns the port. Raises ServerRefusedError."""
        from py4j.protocol import Py4JJavaError

        assert not self.port, "started twice"
        try:
            self.port = jvm_servers.start_connect_server(self._spark)
        except Py4JJavaError as error:
            raise ServerRefusedError(f"Spark Connect did not start: {first_line(error)}") from None
        return self.port

    def stop(self) -> None:
        """Close the port, and end what its clients run."""
        if self.port:
            jvm_servers.stop_connect_server(self._spark)
            self.port = 0
