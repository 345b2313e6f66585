"""A real HDFS on 127.0.0.1: NameNodes and a DataNode of Apache Hadoop, each a process that a test kills and restarts.

The jars are pyspark's and Hadoop's minicluster. A pair of NameNodes shares its edits in a local folder.
"""

from __future__ import annotations

import getpass
import json
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from tests.bench.processes import Child, Failed, free_port
from tests.jars import SPARK_JARS, fetched, java

VERSION = "3.5.0"
NAMESERVICE = "lake"
READY_S = 120
POLL_S = 0.1
# Small, and the quick compiler alone: a start is what costs, not what the servers do.
JVM = ["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dhadoop.root.logger=INFO,console"]
_HDFS = "org.apache.hadoop.hdfs"


def jars() -> Path:
    """The folder of the jar that pyspark has not."""
    minicluster = [("org.apache.hadoop", "hadoop-client-minicluster", VERSION)]
    return fetched(f"hadoop-minicluster-{VERSION}", minicluster, transitive=False)


class HdfsProcesses:
    """An HDFS of one DataNode and one NameNode, or a pair of NameNodes of which `nn0` is active at first.

    Clients find it by the configuration files in `conf` (HADOOP_CONF_DIR) or by `url` and `webhdfs`. The folders
    outlive the processes. The superuser is the user of this process; permissions are checked.

    Invariant: after `stop` no process is left.
    """

    def __init__(self, folder: Path, *, is_pair: bool = False, properties: Mapping[str, str] | None = None) -> None:
        self.folder = folder
        self.user = getpass.getuser()
        self._names = ["nn0", "nn1"] if is_pair else ["nn0"]
        self._rpc = {name: f"127.0.0.1:{free_port()}" for name in self._names}
        self._http = {name: f"127.0.0.1:{free_port()}" for name in self._names}
        self.conf = folder / "conf"
        #: Where Spark reads and writes: a nameservice for a pair.
        self.url = f"hdfs://{NAMESERVICE}" if is_pair else f"hdfs://{self._rpc['nn0']}"
        #: The NameNodes' HTTP addresses, in their order.
        self.webhdfs = [f"http://{address}" for address in self._http.values()]
        self._properties = self._site(is_pair) | dict(properties or {})
        #: The DataNode's HTTP address.
        self.datanode = f"http://{self._properties['dfs.datanode.http.address']}"
        _write_site(self.conf / "core-site.xml", {"fs.defaultFS": self.url})
        _write_site(self.conf / "hdfs-site.xml", self._properties)
        for name in self._names:
            own = {"dfs.namenode.name.dir": f"file://{folder / name}"}
            if is_pair:
                own |= {"dfs.nameservice.id": NAMESERVICE, "dfs.ha.namenode.id": name}
            _write_site(folder / f"conf-{name}" / "core-site.xml", {"fs.defaultFS": self.url})
            _write_site(folder / f"conf-{name}" / "hdfs-site.xml", self._properties | own)
        (self.conf / "hadoop-metrics2.properties").write_text("*.period=1\n")  # seconds for which a metric is cached
        self._format()
        self._children: dict[str, Child] = {}
        try:
            for name in self._names:
                self.start_namenode(name)
            self.start_datanode()
            for name in self._names:
                self._await_answer(name)
            if is_pair:
                self.make_active("nn0")
            self.await_ready()
        except BaseException:
            self.stop()
            raise

    def _site(self, is_pair: bool) -> dict[str, str]:
        found = {
            "dfs.replication": "1",
            "dfs.datanode.data.dir": f"file://{self.folder / 'dn'}",
            "dfs.datanode.address": f"127.0.0.1:{free_port()}",
            "dfs.datanode.http.address": f"127.0.0.1:{free_port()}",
            "dfs.datanode.ipc.address": f"127.0.0.1:{free_port()}",
            "dfs.datanode.hostname": "127.0.0.1",
            "dfs.namenode.datanode.registration.ip-hostname-check": "false",
            "dfs.namenode.resource.du.reserved": "0",
            # It leaves safe mode as soon as the DataNode has reported its blocks.
            "dfs.namenode.safemode.min.datanodes": "1",
            "dfs.namenode.safemode.extension": "0",
            "dfs.heartbeat.interval": "1",
            "dfs.namenode.heartbeat.recheck-interval": "2000",
            # Delegation tokens without Kerberos.
            "dfs.namenode.delegation.token.always-use": "true",
        }
        if not is_pair:
            return found | {
                "dfs.namenode.rpc-address": self._rpc["nn0"],
                "dfs.namenode.http-address": self._http["nn0"],
            }
        return (
            found
            | {
                "dfs.nameservices": NAMESERVICE,
                f"dfs.ha.namenodes.{NAMESERVICE}": ",".join(self._names),
                f"dfs.client.failover.proxy.provider.{NAMESERVICE}": (
                    f"{_HDFS}.server.namenode.ha.ConfiguredFailoverProxyProvider"
                ),
                "dfs.namenode.shared.edits.dir": f"file://{self.folder / 'edits'}",
                "dfs.ha.fencing.methods": "shell(/bin/true)",
                "dfs.ha.tail-edits.period": "1",
            }
            | {f"dfs.namenode.rpc-address.{NAMESERVICE}.{name}": at for name, at in self._rpc.items()}
            | {f"dfs.namenode.http-address.{NAMESERVICE}.{name}": at for name, at in self._http.items()}
        )

    # -- processes ---------------------------------------------------------------------------------------------------

    def start_namenode(self, name: str = "nn0") -> None:
        """Start a NameNode, and wait until it answers; in a pair it is a standby."""
        self._start(name, [f"{_HDFS}.server.namenode.NameNode"], self.folder / f"conf-{name}")

    def start_datanode(self) -> None:
        """Start the DataNode."""
        self._start("dn", [f"{_HDFS}.server.datanode.DataNode"], self.conf)

    def kill(self, name: str = "nn0") -> None:
        """SIGKILL: `nn0`, `nn1` or `dn`."""
        child = self._children.pop(name)
        child.process.kill()
        child.process.wait()

    def stop(self) -> None:
        """End every process."""
        for name in list(self._children):
            self.kill(name)

    def make_active(self, name: str) -> None:
        """Make a NameNode of a pair the active one, and the other, if it runs, a standby."""
        for other in self._names:
            status = self._bean(other, "NameNodeStatus") if other != name else None
            if status is not None and status["State"] == "active":
                self.admin("tools.DFSHAAdmin", "-transitionToStandby", other)
        # Forced: else it insists on asking the other one, which may have been killed.
        self.admin("tools.DFSHAAdmin", "-transitionToActive", "--forceactive", name)

    def safe_mode(self, is_on: bool) -> None:
        """Enter or leave safe mode."""
        self.admin("tools.DFSAdmin", "-safemode", "enter" if is_on else "leave")

    def admin(self, main: str, *arguments: str) -> str:
        """Run one of HDFS's tools; return what it printed."""
        done = subprocess.run(
            self._command([f"{_HDFS}.{main}", *arguments], self.conf),
            capture_output=True,
            text=True,
            timeout=READY_S,
            check=False,
        )
        if done.returncode:
            raise Failed(f"{main} {arguments} ended with {done.returncode}:\n{done.stdout}{done.stderr[-2000:]}")
        return done.stdout

    def _format(self) -> None:
        if (self.folder / "nn0").exists():
            return
        format_it = [f"{_HDFS}.server.namenode.NameNode", "-format", "-nonInteractive"]
        done = subprocess.run(
            self._command(format_it, self.folder / "conf-nn0"),
            capture_output=True,
            text=True,
            timeout=READY_S,
            check=False,
        )
        if done.returncode:
            raise Failed(f"a NameNode cannot be formatted:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
        if "nn1" in self._names:
            shutil.copytree(self.folder / "nn0", self.folder / "nn1")

    def _start(self, name: str, main: list[str], conf: Path) -> None:
        self._children[name] = Child(name, self._command(main, conf), self.folder / f"{name}.log")

    def _command(self, main: list[str], conf: Path) -> list[str]:
        return [java(), *JVM, "-cp", f"{conf}:{jars()}/*:{SPARK_JARS}/*", *main]

    # -- readiness ---------------------------------------------------------------------------------------------------

    def await_ready(self) -> None:
        """Return when a file can be written: a NameNode is active and out of safe mode, the DataNode is known."""
        deadline = time.monotonic() + READY_S
        while not self._is_ready():
            self._check(deadline)
            time.sleep(POLL_S)

    def _is_ready(self) -> bool:
        for name in self._names:
            if name not in self._children:
                continue
            state = self._bean(name, "FSNamesystemState")
            if state is None or state["FSState"] != "Operational" or state["NumLiveDataNodes"] < 1:
                continue
            status = self._bean(name, "NameNodeStatus")
            if status is not None and status["State"] == "active":
                return True
        return False

    def _await_answer(self, name: str) -> None:
        deadline = time.monotonic() + READY_S
        while (status := self._bean(name, "NameNodeStatus")) is None or status["State"] == "initializing":
            self._check(deadline)
            time.sleep(POLL_S)

    def _check(self, deadline: float) -> None:
        for child in self._children.values():
            child.check_running()
        if time.monotonic() > deadline:
            told = "\n".join(child.tail() for child in self._children.values())
            raise Failed(f"HDFS was not ready within {READY_S} s:\n{told}")

    def _bean(self, name: str, bean: str) -> dict[str, Any] | None:
        url = f"http://{self._http[name]}/jmx?qry=Hadoop:service=NameNode,name={bean}"
        try:
            with urllib.request.urlopen(url, timeout=10) as answer:
                beans = json.load(answer)["beans"]
        except (OSError, ValueError):
            return None
        return beans[0] if beans else None


def _write_site(path: Path, properties: Mapping[str, str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [
        f"<property><name>{escape(name)}</name><value>{escape(value)}</value></property>"
        for name, value in properties.items()
    ]
    path.write_text("\n".join(["<configuration>", *lines, "</configuration>", ""]))
