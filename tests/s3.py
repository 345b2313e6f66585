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


#: Of the server's clients, pyarrow's among them: they must not send checksums, which it does not know.
CLIENT_ENVIRONMENT = {"AWS_REQUEST_CHECKSUM_CALCULATION": "when_required"}
#: What Hadoop's module needs of AWS's SDK: the whole is 600 MB.
_SDK = "2.40.2"
_SDK_MODULES = (
    "annotations", "apache-client", "arns", "auth", "aws-core", "aws-json-protocol", "aws-query-protocol",
    "aws-xml-protocol", "checksums", "checksums-spi", "crt-core", "endpoints-spi", "http-auth", "http-auth-aws",
    "http-auth-aws-eventstream", "http-auth-spi", "http-client-spi", "identity-spi", "json-utils", "metrics-spi",
    "netty-nio-client", "profiles", "protocol-core", "regions", "retries", "retries-spi", "s3", "s3-transfer-manager",
    "sdk-core", "sts", "third-party-jackson-core", "url-connection-client", "utils", "utils-lite",
)  # fmt: skip
#: Settings of Spark's session for this server, which knows neither checksums nor the deletion of many objects at once.
#: Without Expect: 100-continue, a test of two loads took 10 to 13 s instead of 20.
SPARK = {
    "fs.s3a.checksum.generation": "false",
    "fs.s3a.multiobjectdelete.enable": "false",
    "fs.s3a.endpoint.region": "us-east-1",
    "fs.s3a.connection.expect.continue": "false",
}


def spark_jars() -> list[Path]:
    """The jars by which Spark reads and writes `s3a://`."""
    amazon = [("software.amazon.awssdk", name, _SDK) for name in _SDK_MODULES]
    amazon += [
        ("software.amazon.eventstream", "eventstream", "1.0.1"),
        ("software.amazon.s3.analyticsaccelerator", "analyticsaccelerator-s3", "1.3.1"),
        ("org.reactivestreams", "reactive-streams", "1.0.4"),
    ]
    folders = [
        fetched(f"aws-sdk-{_SDK}", amazon, transitive=False),
        fetched("hadoop-aws-3.5.0", [("org.apache.hadoop", "hadoop-aws", "3.5.0")], transitive=False),
    ]
    return sorted(jar for folder in folders for jar in folder.glob("*.jar"))


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
            "jclouds.provider": "transient",
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
