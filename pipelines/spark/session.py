"""The Spark session of pipelines and of ad hoc SQL.

Spark's output during its start (Ivy, incubator modules, host names) goes to a log file: the console is for the user.
Spark's own Ivy resolves the Delta jars once; later starts use its cache.

With a `spark.master` other than `local[...]`, Headwater's code is shipped to executors (see `shipping`).
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
from headwater.pipelines.spark.importing import import_pyspark
from headwater.pipelines.spark.shipping import for_cluster, is_cluster, shipped_code
from headwater.pipelines.spark.worker_sockets import remove_socket_folders, socket_conf, socket_folder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOCAL_MASTER = "local[*]"
CHECKPOINT_FILES_CONF = "spark.sql.streaming.checkpointFileManagerClass"
CHECKPOINT_FILES = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
CODEGEN_CACHE_ENTRIES = 2_000
# The JVM's C2 compiler makes code three times as fast, and takes two fifths of the processor time of a session that is
# too short to benefit: the tests of the flights pipeline took 66 s with it and 37 without, both on busy cores.
QUICK_COMPILER = "-XX:TieredStopAtLevel=1"
# A session on one machine has a heap of a few GiB, and its tasks use every core: the JVM's default collector, which
# runs concurrently, takes more of their time than a stop-the-world collector. The stage `clean` with ten million
# flights: 91,200 and 95,500 events/s with the default, 97,900 to 100,400 with this collector.
COLLECTOR = "-XX:+UseParallelGC"
# A JVM with options for two collectors does not start.
_COLLECTORS = re.compile(r"-XX:\+Use\w*GC\b")
_JAVA_VARIABLES = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS", "SPARK_SUBMIT_OPTS")
JAVA_OPTIONS_CONF = "spark.driver.extraJavaOptions"
PACKAGES_CONF = "spark.jars.packages"
DELTA_PACKAGE = "io.delta:delta-spark_4.2_2.13:4.4.0"
LOG_BYTES_MAX = 65_536  # of Spark's log that are searched for the cause of a failed start
JVM_END_SECONDS_MAX = 10.0
JVM_LOST_SECONDS_MAX = 5.0  # between the JVM's last connection and its end
DRIVER_MEMORY = "2g"  # the state of a year of flights and a persisted micro-batch fit in half of it


# Without a cluster, Spark must not be reachable from outside.
LOOPBACK_CONF = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}

# spark-submit's setting for PYSPARK_PYTHON, which it overrides there, too.
PYTHON_CONF = "spark.pyspark.python"

WORKER_ENVIRONMENT = {
    # Workers run the interpreter of this process, regardless of `python3` on the PATH.
    "PYSPARK_PYTHON": sys.executable,
    "PYSPARK_DRIVER_PYTHON": sys.executable,
    # Workers start in the user's folder, which Python puts first on its path: a file numbers.py or a folder pipelines
    # there must not shadow the standard library's or Headwater's modules.
    "PYTHONSAFEPATH": "1",
}


class SessionError(Exception):
    """Spark could not start; the message gives the cause and the path of its log."""


def settings(
    extra: Mapping[str, str] | None = None,
    *,
    few_rows: bool = False,
    environment: Mapping[str, str] = os.environ,
) -> dict[str, str]:
    """The Spark settings of a session; `extra` overrides. `shipping.for_cluster` adds the settings for a cluster.

    Java options of `extra` follow Headwater's: of two conflicting options, the JVM uses the later.

    `few_rows`: the session is short, and each of its jobs is small. A collector set in the Java options of
    `environment` or `extra` is kept.
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
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(cores),
        # HotSpot never compiles a method of more bytes; Spark then divides the expressions into smaller ones (ADR 33).
        "spark.sql.codegen.hugeMethodLimit": "8000",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": DRIVER_MEMORY,
        **({} if on_cluster else LOOPBACK_CONF),
        # One small log, no cluster: the default of 50 tasks for a table's state costs more than computing the state.
        "spark.databricks.delta.snapshotPartitions": str(cores),
        "spark.sql.sources.parallelPartitionDiscovery.parallelism": str(cores),
        # A micro-batch is cached only while it is written: choosing the best compression of its columns takes a tenth
        # of a profile's samples in a stage that only filters, and saves memory that is not scarce.
        "spark.sql.inMemoryColumnarStorage.compressed": "false",
        # A micro-batch of a stage with a few sinks needs about 120 generated classes, and Spark caches 100 by default:
        # some two dozen were evicted before their next use, and generated and compiled again in every micro-batch.
        "spark.sql.codegen.cache.maxEntries": str(CODEGEN_CACHE_ENTRIES),
        # With Spark's default, Hadoop starts 20 processes a micro-batch (16 readlink, 4 chmod) for a checkpoint on a
        # local disk, with this the 4 chmod: 12 ms instead of 55 for each commit. Both write a new file and rename it.
        CHECKPOINT_FILES_CONF: CHECKPOINT_FILES,
        **SESSION_CONF,
        **extra,
        PACKAGES_CONF: with_delta(extra.get(PACKAGES_CONF, "")),
        JAVA_OPTIONS_CONF: " ".join(java_options),
    }


def with_delta(packages: str) -> str:
    """Add Delta to packages, unless they name a Delta of their own.

    >>> with_delta("org.apache.hadoop:hadoop-aws:3.5.0")
    'org.apache.hadoop:hadoop-aws:3.5.0,io.delta:delta-spark_4.2_2.13:4.4.0'
    >>> with_delta(""), with_delta("io.delta:delta-spark_4.2_2.13:4.4.1")
    ('io.delta:delta-spark_4.2_2.13:4.4.0', 'io.delta:delta-spark_4.2_2.13:4.4.1')
    """
    named = [each.strip() for each in packages.split(",") if each.strip()]
    if any(each.startswith("io.delta:delta-spark") for each in named):
        return ",".join(named)
    return ",".join([*named, DELTA_PACKAGE])


def cluster_environment(conf: Mapping[str, str], environment: Mapping[str, str], code: str) -> dict[str, str]:
    """The environment variables for the JVM of a cluster's driver and its Python workers.

    The user may name another interpreter than that of this process. Its path must be the same on every machine, since
    Spark also runs the data source's planner, on the driver's machine, with it. There the interpreter finds Headwater's
    code in the folder `code`.

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
    import_pyspark()  # the kernels' thread needs some of it, too
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
    # This process is idle while the JVM starts. The first compilation takes seconds; otherwise every worker would
    # compile at the same time.
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
    """Fill the cache of compiled kernels for the workers. Never raises: a worker reports the same fault."""
    from headwater.pipelines.datasource.compiled import warm_cache

    with suppress(Exception):
        warm_cache()


def running_session() -> SparkSession | None:
    """The session that `open_session` started in this process, if it still runs."""
    from pyspark.sql import SparkSession

    return SparkSession.getActiveSession()


def lost_jvm(wait_s: float = 0.0) -> str | None:
    """Describe how the session's JVM has ended; None while it runs, or if none was started.

    A connection to the JVM breaks shortly before its process ends: after a broken connection, callers wait for at most
    `wait_s`.
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
    """Describe an exit code of the JVM.

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
    """End Spark, if it runs, and its JVM, which would otherwise remain (1.4 GiB) until this process ends."""
    if lost_jvm() is not None:
        return  # nothing remains to be ended, and pyspark's own stop calls the JVM
    spark = running_session()
    if spark is None:
        return
    spark.stop()
    process = jvm.close_gateway()
    if process is None:
        return
    assert process.stdin is not None, "PySpark launches the JVM with a pipe"
    process.stdin.close()  # the JVM's signal to end
    try:
        process.wait(JVM_END_SECONDS_MAX)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    remove_socket_folders()


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """Set variables for the JVM, which passes them to its Python workers; restores this process's own afterwards."""
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
    """Redirect standard output and error to the log file during the launch of the JVM, which inherits them."""
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
    """The cause of a failed start, from Spark's log since `began_at` (earlier runs wrote before), and a remedy."""
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
    # Their messages are also raised as errors, and reported in Headwater's terms; py4j logs each connection that a stop
    # closes.
    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger", "py4j", "py4j.clientserver", "pyspark"):
        logger = logging.getLogger(name)
        logger.setLevel(logging.CRITICAL + 1)
        logger.propagate = False
