"""A standalone Spark cluster out of the pyspark wheel: a Master and two Workers, in folders of their own.

They know nothing of the checkout: another current folder, no PYTHONPATH, none of this process's environment.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark
import pytest

from headwater.pipelines.spark.session import close_session, open_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

START_S = 90
STOP_S = 30
MASTER_IS_UP = re.compile(r"Starting Spark master at (spark://\S+)")
WORKER_IS_UP = "Successfully registered with master"
# Of the executors: tasks of two pass through each, one after the other. Their JVMs have the options of the driver's.
EXECUTOR = {
    "spark.executor.memory": "768m",
    "spark.executor.cores": "1",
    "spark.executor.extraJavaOptions": os.environ.get("SPARK_SUBMIT_OPTS", ""),
}


class Daemon:
    """A Master or a Worker with all that it starts; after `kill` nothing is left but what ends by itself."""

    def __init__(self, name: str, folder: Path, *arguments: str) -> None:
        self.folder = folder
        folder.mkdir(parents=True)
        self.output = folder / f"{name}.log"
        home = Path(pyspark.__file__).parent
        environment = {
            name: os.environ[name]
            for name in ("PATH", "HOME", "JAVA_HOME", "LANG", "TMPDIR", "USER")
            if name in os.environ
        }
        environment |= {
            "SPARK_HOME": str(home),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
            "SPARK_LOCAL_DIRS": str(folder / "local"),
        }
        command = [str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{name.lower()}.{name}", *arguments]
        with self.output.open("wb") as output:
            self.process = subprocess.Popen(
                command,
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def await_line(self, pattern: str | re.Pattern[str]) -> re.Match[str]:
        """The first match in what it prints."""
        deadline_s = time.monotonic() + START_S
        while time.monotonic() < deadline_s:
            said = self.output.read_text(errors="replace")
            if found := re.search(pattern, said):
                return found
            assert self.process.poll() is None, f"it ended with {self.process.returncode}:\n{said}"
            time.sleep(0.05)
        raise AssertionError(f"no {pattern!r} within {START_S} s:\n{self.output.read_text(errors='replace')}")

    def kill(self) -> None:
        """End it with its executors, as a machine that loses power; their Python processes end when they notice."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(STOP_S)


class Cluster:
    """A Master and its Workers; a Worker can be killed and another one started."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._started = 0
        self._master = Daemon("Master", folder / "master", "--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
        self.workers: list[Daemon] = []
        self.url = ""

    def start(self) -> None:
        self.url = self._master.await_line(MASTER_IS_UP)[1]
        for worker in [self.start_worker(), self.start_worker()]:
            worker.await_line(WORKER_IS_UP)

    def start_worker(self) -> Daemon:
        self._started += 1
        folder = self.folder / f"worker-{self._started}"
        sizes = ["--cores", "1", "--memory", "1g", "--work-dir", str(folder / "work")]
        worker = Daemon("Worker", folder, "--host", "127.0.0.1", "--webui-port", "0", *sizes, self.url)
        self.workers.append(worker)
        return worker

    def kill_worker(self) -> Daemon:
        """The first of those that live; its executor goes with it."""
        worker = self.workers.pop(0)
        worker.kill()
        return worker

    def close(self) -> None:
        for daemon in [*self.workers, self._master]:
            daemon.kill()


@pytest.fixture(scope="package")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    made = Cluster(tmp_path_factory.mktemp("cluster"))
    try:
        made.start()
        yield made
    finally:
        made.close()


@pytest.fixture(scope="package")
def cluster_spark(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session on the cluster, as the product opens it; a JVM that other tests have left ends first."""
    close_session()
    log = tmp_path_factory.mktemp("spark") / "spark.log"
    conf = {
        "spark.master": cluster.url,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(log.parent),
        **EXECUTOR,
    }
    yield open_session("cluster tests", str(log), conf)
    close_session()
