"""What a cluster's machines must have, asked of them before a pipeline starts.

Without this a missing library is a traceback of the first task, and a state folder that a machine does not see is a
stage that loses its state when a task moves.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["LIBRARIES", "Answer", "ClusterError", "check_cluster", "faults"]

#: What tasks import that has compiled parts, or that our code is written on.
LIBRARIES: Final = ("numpy", "numba", "pyarrow", "pandas", "cramjam", "crc32c", "kio", "google.protobuf")
#: Tasks that ask: more than a cluster that is tried out has executors, few enough to be done in a moment.
ASKING_TASKS_MAX: Final = 64
#: What each does first, so that one executor does not answer for all.
PAUSE_S: Final = 0.2


class ClusterError(Exception):
    """The cluster cannot run pipelines as it is; the message says which machine lacks what."""


class Answer(NamedTuple):
    """What one task found on its machine."""

    host: str
    missing: tuple[str, ...]
    sees_state: bool


def check_cluster(spark: SparkSession, state: str) -> list[str]:
    """Ask the executors that are there. Returns the hosts that do not see the state folder; raises ClusterError."""
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
    """A line for each machine that lacks libraries.

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
    """The task. It uses nothing of ours, so that it runs whatever is missing."""
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
            except ImportError:  # of the package that it is in
                missing.append(name)
        yield socket.gethostname(), missing, os.path.exists(token)

    return ask
