"""The Spark session of pipelines and of ad hoc SQL.

Everything that Spark prints while it starts (Ivy, incubator modules, host names) goes to a log file: the console is the
user's. The Delta jars are resolved by Spark's own Ivy, once; afterwards they come from its cache.

With a `spark.master` that is no `local[...]`, executors get our code shipped (see `shipping`).
"""

from __future__ import annotations

import logging
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from typing import TYPE_CHECKING

from headwater.pipelines.spark import jvm
from headwater.pipelines.spark.shipping import for_cluster, is_cluster, shipped_code
from headwater.pipelines.spark.worker_sockets import remove_socket_folders, socket_conf, socket_folder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOCAL_MASTER = "local[*]"
CHECKPOINT_FILES_CONF = "spark.sql.streaming.checkpointFileManagerClass"
CHECKPOINT_FILES = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
CODEGEN_CACHE_ENTRIES = 2_000
# The JVM's other compiler makes code three times as fast and takes two fifths of the processor time of a session that
# ends before it pays: the tests of the flights pipeline took 66 s with it and 37 without, both on busy cores.
QUICK_COMPILER = "-XX:TieredStopAtLevel=1"
# A session on one machine has a heap of a few GiB, and its tasks use every core: the JVM's default, which collects
# beside them, takes more of their time than the collector that stops them for a moment. The stage `clean` of ten
# million flights: 91,200 and 95,500 events/s with the default, 97,900 to 100,400 with this one.
COLLECTOR = "-XX:+UseParallelGC"
# A JVM that is told of two collectors does not start.
_COLLECTORS = re.compile(r"-XX:\+Use\w*GC\b")
_JAVA_VARIABLES = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS", "SPARK_SUBMIT_OPTS")
JAVA_OPTIONS_CONF = "spark.driver.extraJavaOptions"
DELTA_PACKAGE = "io.delta:delta-spark_4.2_2.13:4.4.0"
LOG_BYTES_MAX = 65_536  # of Spark's log that are searched for why it did not start
JVM_END_SECONDS_MAX = 10.0
JVM_LOST_SECONDS_MAX = 5.0  # between its last connection and its end
DRIVER_MEMORY = "2g"  # the state of a year of flights and a persisted micro-batch fit in half of it


# Without a cluster nothing of Spark's is to be reached from outside.
LOOPBACK_CONF = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}

# The setting by which spark-submit is told what PYSPARK_PYTHON says; it wins there, too.
PYTHON_CONF = "spark.pyspark.python"

WORKER_ENVIRONMENT = {
    # Workers run the interpreter that runs this, whatever `python3` is on the PATH.
    "PYSPARK_PYTHON": sys.executable,
    "PYSPARK_DRIVER_PYTHON": sys.executable,
    # Workers start in the user's folder, and Python puts it first on its path: a file called numbers.py there, or a
    # folder called pipelines, must not stand in for the standard library's or ours.
    "PYTHONSAFEPATH": "1",
}


class SessionError(Exception):
    """Spark could not start; the message says why and where its log is."""


def settings(
    extra: Mapping[str, str] | None = None,
    *,
    few_rows: bool = False,
    environment: Mapping[str, str] = os.environ,
) -> dict[str, str]:
    """The Spark settings of a session; `extra` wins. What a cluster needs besides is `shipping.for_cluster`'s.

    Java options of `extra` come after ours: of two for the same, the JVM takes the later one.

    `few_rows`: the session ends soon, and each job of it is small. The collector of `environment`'s Java options, or of
    those given, is left as it is.
    """
    from headwater.pipelines.datasource import SESSION_CONF

    extra = extra or {}
    on_cluster = is_cluster(extra.get("spark.master", LOCAL_MASTER))
    given = [extra.get(JAVA_OPTIONS_CONF, ""), *(environment.get(name, "") for name in _JAVA_VARIABLES)]
    has_collector = any(map(_COLLECTORS.search, given))
    cores = os.cpu_count() or 1
    log4j = os.path.join(os.path.dirname(os.path.abspath(__file__)), "log4j2.properties")
    java_options = [f"-Dlog4j2.configurationFile=file:{log4j}", "-Duser.timezone=UTC"]
    if few_rows:
        java_options.append(QUICK_COMPILER)
    if not on_cluster and not has_collector:
        java_options.append(COLLECTOR)
    if JAVA_OPTIONS_CONF in extra:
        java_options.append(extra[JAVA_OPTIONS_CONF])
    return {
        "spark.master": LOCAL_MASTER,
        "spark.jars.packages": DELTA_PACKAGE,
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(cores),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": DRIVER_MEMORY,
        **({} if on_cluster else LOOPBACK_CONF),
        # One small log, no cluster: the default of 50 tasks for a table's state costs more than the state.
        "spark.databricks.delta.snapshotPartitions": str(cores),
        "spark.sql.sources.parallelPartitionDiscovery.parallelism": str(cores),
        # A micro-batch is kept for as long as it is written: finding out how its columns would compress best is a tenth
        # of a profile's samples where a stage only filters, and frees memory that nobody waits for.
        "spark.sql.inMemoryColumnarStorage.compressed": "false",
        # A micro-batch of a stage with a few sinks needs about 120 generated classes, Spark keeps 100 of them: some two
        # dozen were thrown away before their next use, and generated and compiled again in every micro-batch.
        "spark.sql.codegen.cache.maxEntries": str(CODEGEN_CACHE_ENTRIES),
        # With Spark's default, Hadoop starts 20 processes a micro-batch (16 readlink, 4 chmod) for a checkpoint on a
        # local disk, with this the 4 chmod: 12 ms instead of 55 for each commit. Both write a new file and rename it.
        CHECKPOINT_FILES_CONF: CHECKPOINT_FILES,
        **SESSION_CONF,
        **extra,
        JAVA_OPTIONS_CONF: " ".join(java_options),
    }


def cluster_environment(conf: Mapping[str, str], environment: Mapping[str, str], code: str) -> dict[str, str]:
    """The variables for the JVM of a cluster's driver and its Python workers.

    The user may name another interpreter than the one that runs this: one path on every machine, since Spark runs the
    data source's planner, on the driver's machine, with the same. There it finds our code in the folder `code`.

    >>> cluster_environment({"spark.pyspark.python": "/env/bin/python"}, {}, "/cache/code")["PYTHONPATH"]
    '/cache/code'
    """
    python = conf.get(PYTHON_CONF) or environment.get("PYSPARK_PYTHON") or sys.executable
    found = WORKER_ENVIRONMENT | {"PYSPARK_PYTHON": python, "PYSPARK_DRIVER_PYTHON": python}
    if python != sys.executable:
        found["PYTHONPATH"] = os.pathsep.join(filter(None, [code, environment.get("PYTHONPATH", "")]))
    return found


def open_session(
    name: str, log_path: str, extra: Mapping[str, str] | None = None, *, few_rows: bool = False
) -> SparkSession:
    """Start Spark, with `settings`, or return the running session. Raises SessionError."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    _quiet_loggers()
    conf, environment = settings(extra, few_rows=few_rows), dict(WORKER_ENVIRONMENT)
    is_new = running_session() is None
    if is_new and not is_cluster(conf["spark.master"]):
        try:
            conf = socket_conf(socket_folder()) | conf
        except OSError as error:
            raise SessionError(f"a folder for temporary files cannot be made: {error}") from error
    elif is_new:
        try:
            code = shipped_code()
        except OSError as error:
            raise SessionError(f"the code for the cluster's machines cannot be packed: {error}") from error
        conf |= for_cluster(conf, code.archive)
        environment = cluster_environment(conf, os.environ, code.folder)
    builder = SparkSession.builder.appName(name)
    for key, value in conf.items():
        builder = builder.config(key, value)
    os.makedirs(os.path.dirname(os.path.abspath(log_path)), exist_ok=True)
    # While the JVM starts, this process would only wait; compiling takes seconds the first time, in every worker at
    # once if it is left to them.
    compiling = threading.Thread(target=_warm_kernels, name="warm-kernels", daemon=True)
    compiling.start()
    began_at = os.path.getsize(log_path) if os.path.exists(log_path) else 0
    try:
        with _output_to(log_path), _environment(environment):
            spark = builder.getOrCreate()
    except (PySparkException, Py4JError, RuntimeError, OSError) as error:
        reason = lost_jvm(JVM_LOST_SECONDS_MAX) or start_failure(log_path, began_at, error)
        raise SessionError(f"Spark did not start: {reason}; its log is {log_path}") from error
    compiling.join()
    return spark


@cache
def _warm_kernels() -> None:
    """Fill the cache of compiled kernels for the workers. Never raises: a worker meets the same fault and tells it."""
    from headwater.pipelines.datasource.compiled import warm_cache

    with suppress(Exception):
        warm_cache()


def running_session() -> SparkSession | None:
    """The session that `open_session` started in this process, if it still runs."""
    from pyspark.sql import SparkSession

    return SparkSession.getActiveSession()


def lost_jvm(wait_s: float = 0.0) -> str | None:
    """Say how the session's JVM has ended; None while it runs, or when none was started.

    A connection to it breaks a moment before its process is gone: who has seen that waits for at most `wait_s`.
    """
    process = jvm.java_process()
    if process is None:
        return None
    try:
        code = process.wait(wait_s)
    except subprocess.TimeoutExpired:
        return None
    return f"Spark's Java process has ended: {jvm_end(code)}"


def jvm_end(code: int) -> str:
    """What an exit code of the JVM says.

    >>> jvm_end(-9)
    'SIGKILL, as the kernel sends it when memory is short (dmesg tells); a smaller spark.driver.memory may help'
    >>> jvm_end(1), jvm_end(-15)
    ('exit code 1', 'SIGTERM')
    """
    if code == -signal.SIGKILL:
        why = "as the kernel sends it when memory is short (dmesg tells); a smaller spark.driver.memory may help"
        return f"SIGKILL, {why}"
    if code < 0:
        return signal.Signals(-code).name
    return f"exit code {code}"


def close_session() -> None:
    """End Spark, if it runs, and its JVM, which would stay (1.4 GiB) for as long as this process."""
    if lost_jvm() is not None:
        return  # nothing is left to end, and pyspark's own way asks the JVM
    spark = running_session()
    if spark is None:
        return
    spark.stop()
    process = jvm.close_gateway()
    if process is None:
        return
    assert process.stdin is not None, "PySpark launches the JVM with a pipe"
    process.stdin.close()  # its sign to end
    try:
        process.wait(JVM_END_SECONDS_MAX)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    remove_socket_folders()


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """Variables for the JVM, which hands them to its Python workers; this process has its own again afterwards."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def _output_to(path: str) -> Iterator[None]:
    """The JVM inherits our standard output and error: while it is launched they are the log file."""
    sys.stdout.flush()
    sys.stderr.flush()
    saved = [os.dup(1), os.dup(2)]
    target = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.dup2(target, 1)
        os.dup2(target, 2)
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os.dup2(saved[0], 1)
        os.dup2(saved[1], 2)
        for descriptor in (*saved, target):
            os.close(descriptor)


def start_failure(log_path: str, began_at: int, error: Exception) -> str:
    """Why Spark did not start, from what it logged since `began_at` (earlier runs wrote before), and what to do."""
    try:
        with open(log_path, "rb") as log:
            log.seek(max(began_at, os.path.getsize(log_path) - LOG_BYTES_MAX))
            lines = log.read().decode("utf-8", "replace").splitlines()
    except OSError:
        lines = []
    for line in reversed(lines):
        if "unresolved dependency" in line:
            missing = line.rpartition("[")[2].strip(" ]")
            return f"the Delta jars cannot be fetched from Maven Central ({missing}); check the network or the proxy"
        if "JAVA_HOME" in line or "UnsupportedClassVersionError" in line or "bin/java: " in line:
            return f"{line.strip()}; `headwater doctor` checks Java"
        if line.startswith('Exception in thread "main"'):
            return line.partition(": ")[2] or line
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _quiet_loggers() -> None:
    # What they log is raised as well, and told in our words; py4j logs each connection that a stop cuts.
    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger", "py4j", "py4j.clientserver", "pyspark"):
        logger = logging.getLogger(name)
        logger.setLevel(logging.CRITICAL + 1)
        logger.propagate = False
