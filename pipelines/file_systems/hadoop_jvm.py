"""A Java process with Hadoop's client, for files that cannot be reached otherwise. It ends with this process.

Its class path is pyspark's jars and HADOOP_CONF_DIR; one process serves all threads.
"""

from __future__ import annotations

import glob
import importlib.util
import os
import threading
from collections.abc import Mapping
from functools import cache
from typing import Any, Final

from headwater.pipelines.file_systems.file_system import FileSystemError

__all__ = ["OwnJvm"]

_JAVA_OPTIONS: Final = ["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dlog4j2.level=OFF"]
_STARTING: Final = threading.Lock()


class OwnJvm:
    """Returns the gateway to the Java process, which the first call starts, and a Configuration with `settings`."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        self._settings = dict(settings)
        self._configuration: Any = None

    def __getstate__(self) -> dict[str, str]:
        return self._settings

    def __setstate__(self, settings: dict[str, str]) -> None:
        self._settings = settings
        self._configuration = None

    def __call__(self) -> tuple[Any, Any]:
        """Raises FileSystemError."""
        with _STARTING:
            gateway = _started(os.environ.get("HADOOP_CONF_DIR", ""))
            if self._configuration is None:
                self._configuration = gateway.jvm.org.apache.hadoop.conf.Configuration()
                for name, value in self._settings.items():
                    self._configuration.set(name, value)
            return gateway, self._configuration


@cache
def _started(conf: str) -> Any:
    from py4j import protocol
    from py4j.java_gateway import GatewayClient, GatewayParameters, JavaGateway, launch_gateway

    class Client(GatewayClient):  # type: ignore[misc]  # py4j has no types
        """Raises Java's exceptions before pyspark sees them, which would read them in its own JVM.

        A session replaces the function by which all gateways of the process raise exceptions, and nothing restores it.
        """

        def send_command(self, command: str, retry: bool = True, binary: bool = False) -> Any:
            answer = super().send_command(command, retry, binary)
            if not binary and protocol.is_error(answer)[0]:
                protocol.get_return_value(answer, self, "Hadoop", "call")  # raises
            return answer

    jars, py4j_jar = _jars()
    try:
        port, token, process = launch_gateway(
            jarpath=py4j_jar,
            classpath=os.pathsep.join(filter(None, [conf, os.path.join(jars, "*")])),
            javaopts=_JAVA_OPTIONS,
            java_path="",  # JAVA_HOME's, else the one on PATH
            die_on_exit=True,
            enable_auth=True,
            return_proc=True,
        )
    except (OSError, ValueError) as error:
        raise FileSystemError(f"Java did not start ({error}); `headwater doctor` checks Java") from error
    parameters = GatewayParameters(port=port, auth_token=token)
    gateway = JavaGateway(gateway_parameters=parameters, java_process=process)
    gateway.set_gateway_client(Client(gateway_parameters=parameters))
    return gateway


def _jars() -> tuple[str, str]:
    """The folder of Spark's jars, and that of py4j. Raises FileSystemError.

    In Spark's tasks PySpark is a zip file without jars, and SPARK_HOME is set.
    """
    spec = importlib.util.find_spec("pyspark")  # without an import, which takes seconds
    places = [os.path.dirname((spec and spec.origin) or ""), os.environ.get("SPARK_HOME", "")]
    for place in filter(None, places):
        jars = os.path.join(place, "jars")
        for py4j_jar in glob.glob(os.path.join(glob.escape(jars), "py4j-*.jar")):
            return jars, py4j_jar
    raise FileSystemError("the jars of Spark are not found: set SPARK_HOME to the folder that holds `jars`")
