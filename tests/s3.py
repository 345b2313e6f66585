"""An S3 server on 127.0.0.1: S3Proxy (Apache-2.0), with its objects in memory. Its jars come by Ivy."""

from __future__ import annotations

import socket
import time
from pathlib import Path

from tests.bench.processes import Child, Failed, free_port
from tests.jars import fetched, java

S3PROXY = "2.9.0"
JCLOUDS = "2.7.0"
READY_S = 60
ACCESS_KEY = "tester"
SECRET_KEY = "tester's secret"
_QUIET = """\
<configuration>
<appender name="A" class="ch.qos.logback.core.ConsoleAppender">
<encoder><pattern>%level %msg%n%ex</pattern></encoder></appender>
<root level="WARN"><appender-ref ref="A"/></root>
</configuration>
"""


class S3Server:
    """The server's process; its address is `endpoint`."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        port = free_port()
        self.endpoint = f"http://127.0.0.1:{port}"
        properties = {
            "s3proxy.endpoint": self.endpoint,
            "s3proxy.authorization": "aws-v2-or-v4",
            "s3proxy.identity": ACCESS_KEY,
            "s3proxy.credential": SECRET_KEY,
            "jclouds.provider": "transient-nio2",
        }
        (folder / "s3proxy.properties").write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
        (folder / "logback.xml").write_text(_QUIET)
        # Ivy leaves out jars of the packaging that three modules of jclouds have, unless they are named.
        modules = [("org.apache.jclouds", name, JCLOUDS) for name in ("jclouds-core", "jclouds-blobstore")]
        named = fetched(f"jclouds-{JCLOUDS}", [*modules, ("org.apache.jclouds.api", "s3", JCLOUDS)], transitive=False)
        others = fetched(f"s3proxy-{S3PROXY}", [("org.gaul", "s3proxy", S3PROXY)])
        jvm = ["-Xmx192m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        command = [
            java(), *jvm, f"-Dlogback.configurationFile={folder / 'logback.xml'}", "-cp", f"{named}/*:{others}/*",
            "org.gaul.s3proxy.Main", "--properties", str(folder / "s3proxy.properties"),
        ]  # fmt: skip
        self._child = Child("s3proxy", command, folder / "s3proxy.log")
        deadline = time.monotonic() + READY_S
        while not _answers(port):
            self._child.check_running()
            if time.monotonic() > deadline:
                raise Failed(f"S3Proxy did not listen within {READY_S} s:\n{self._child.tail()}")
            time.sleep(0.05)

    @property
    def settings(self) -> dict[str, str]:
        """Hadoop's settings for `s3a://`."""
        return {
            "fs.s3a.endpoint": self.endpoint,
            "fs.s3a.path.style.access": "true",
            "fs.s3a.access.key": ACCESS_KEY,
            "fs.s3a.secret.key": SECRET_KEY,
        }

    def make_bucket(self, name: str) -> None:
        """Make a bucket."""
        from pyarrow.fs import S3FileSystem

        S3FileSystem(
            access_key=ACCESS_KEY, secret_key=SECRET_KEY, endpoint_override=self.endpoint, region="us-east-1",
            allow_bucket_creation=True,
        ).create_dir(name)  # fmt: skip

    def stop(self) -> None:
        """End the process."""
        self._child.stop()


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True
