"""Checks the requirements on a cluster's machines before a pipeline starts.

Without the check, a missing library appears as a traceback of the first task, and a stage loses its state when a task
moves to a machine without access to the state folder.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["LIBRARIES", "Answer", "ClusterError", "check_cluster", "faults"]

#: Libraries that tasks import: those with compiled parts, and those that Headwater's code builds on.
LIBRARIES: Final = ("numpy", "numba", "pyarrow", "pandas", "cramjam", "crc32c", "kio", "google.protobuf")
#: Number of check tasks: more than a trial cluster has executors, few enough to finish quickly.
ASKING_TASKS_MAX: Final = 64
#: Initial pause of each task, so that one executor does not run all of them.
PAUSE_S: Final = 0.2


class ClusterError(Exception):
    """The cluster does not meet the requirements; the message names the machine and the missing part."""


class Answer(NamedTuple):
    """One task's result on its machine."""

    host: str
    missing: tuple[str, ...]
    sees_state: bool


def check_cluster(spark: SparkSession, state: str) -> list[str]:
    """Check the available executors. Returns the hosts without access to the state folder. Raises ClusterError."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    token = os.path.join(os.path.abspath(state), f".seen-{uuid.uuid4().hex}")
    context = spark.sparkContext
    tasks = min(max(context.defaultParallelism, 2), ASKING_TASKS_MAX)
    try:
        with open(token, "x", encoding="utf-8"):
            pass
        rows = context.parallelize(range(tasks), tasks).mapPartitions(asking(LIBRARIES, token)).collect()
    except (Py4JError, PySparkException) as error:
        from headwater.pipelines.spark.spark_errors import first_line

        raise ClusterError(f"a task failed: {first_line(error)}") from error
    finally:
        if os.path.exists(token):
            os.remove(token)
    answers = [Answer(host, tuple(missing), sees) for host, missing, sees in rows]
    if found := faults(answers):
        raise ClusterError("; ".join(found))
    return sorted({answer.host for answer in answers if not answer.sees_state})


def faults(answers: Iterable[Answer]) -> list[str]:
    """A message for each machine that lacks libraries.

    >>> faults([Answer("a", (), True), Answer("b", ("numba", "cramjam"), True), Answer("b", ("numba",), True)])
    ["the Python of b has no cramjam, numba: install Headwater's dependencies there (docs/how-to/spark_cluster.md)"]
    """
    missing: dict[str, set[str]] = {}
    for answer in answers:
        if answer.missing:
            missing.setdefault(answer.host, set()).update(answer.missing)
    return [
        f"the Python of {host} has no {', '.join(sorted(names))}: install Headwater's dependencies there "
        "(docs/how-to/spark_cluster.md)"
        for host, names in sorted(missing.items())
    ]


def asking(libraries: tuple[str, ...], token: str) -> Callable[[Iterable[Any]], Iterator[tuple[str, list[str], bool]]]:
    """The task. It imports none of Headwater's modules, so that it runs even if libraries are missing."""
    pause_s = PAUSE_S

    def ask(_rows: Iterable[Any]) -> Iterator[tuple[str, list[str], bool]]:
        import importlib.util
        import os
        import socket
        import time

        time.sleep(pause_s)
        missing = []
        for name in libraries:
            try:
                if importlib.util.find_spec(name) is None:
                    missing.append(name)
            except ImportError:  # of the enclosing package
                missing.append(name)
        yield socket.gethostname(), missing, os.path.exists(token)

    return ask
