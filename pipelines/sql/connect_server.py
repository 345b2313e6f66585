"""Spark Connect in the JVM of a session: remote sessions of PySpark and of Spark's other clients, by gRPC.

Each client has a session of its own; the catalog and global temporary views are those of the JVM.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headwater.pipelines.spark import jvm_servers
from headwater.pipelines.spark.spark_errors import first_line
from headwater.pipelines.sql.loopback import ServerRefusedError, loopback_address

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["ConnectServer", "connect_conf"]

_ADDRESS: Final = "spark.connect.grpc.binding.address"
_PORT: Final = "spark.connect.grpc.binding.port"
_NAME: Final = "Spark Connect"


def connect_conf(address: str = "127.0.0.1", port: int = 0) -> dict[str, str]:
    """The settings of a session that may start Spark Connect: Spark reads them from its context.

    Port 0 lets the system choose. Raises ServerRefusedError for an address that is not loopback.

    >>> connect_conf("localhost", 15002)
    {'spark.connect.grpc.binding.address': '127.0.0.1', 'spark.connect.grpc.binding.port': '15002'}
    """
    return {_ADDRESS: loopback_address(address, _NAME), _PORT: str(port)}


class ConnectServer:
    """One server at a time in a JVM, in a session with `connect_conf`."""

    def __init__(self, spark: SparkSession) -> None:
        """Raises ServerRefusedError if the session's address is not loopback, which Spark's own default is not."""
        self._spark = spark
        # Without the setting, Spark binds every address of the machine.
        self.address = loopback_address(spark.sparkContext.getConf().get(_ADDRESS) or "0.0.0.0", _NAME)  # noqa: S104
        self.port = 0

    def start(self) -> int:
        """Serve; returns the port. Raises ServerRefusedError."""
        from py4j.protocol import Py4JJavaError

        assert not self.port, "started twice"
        try:
            self.port = jvm_servers.start_connect_server(self._spark)
        except Py4JJavaError as error:
            where = f"{self.address}:{self._spark.sparkContext.getConf().get(_PORT)}"
            raise ServerRefusedError(f"{_NAME} did not start on {where}: {first_line(error)}") from None
        return self.port

    def stop(self) -> None:
        """Close the port, and end what its clients run."""
        if self.port:
            jvm_servers.stop_connect_server(self._spark)
            self.port = 0

    @property
    def url(self) -> str:
        """What `SparkSession.builder.remote` takes."""
        host = f"[{self.address}]" if ":" in self.address else self.address
        return f"sc://{host}:{self.port}"
