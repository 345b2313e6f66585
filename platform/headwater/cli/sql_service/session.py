"""The JVM of the SQL service: opened by the first query that needs it, closed when idle."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

from headwater.cli.pipeline.loading import load
from headwater.cli.shell.driver_session import driver_session
from headwater.cli.shell.options import settings
from headwater.cli.sql.known_relations import Cluster, archives_of, known_relations
from headwater.cli.sql.options import SqlOptions
from headwater.cli.sql_service.catalog_query import CatalogSessions
from headwater.pipelines.spark import jvm
from headwater.pipelines.sql.relations import session_conf

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["checked_files", "opened_sessions", "service_conf"]

#: Of one query's result, which the JVM holds as it was computed; larger ones fail instead of filling the heap.
RESULT_SIZE_MAX: Final = "512m"


def service_conf(master: str) -> dict[str, str]:
    """The settings of the session: pools share Spark fairly, each with the queries of one session."""
    return {
        "spark.master": master,
        "spark.scheduler.mode": "FAIR",
        "spark.driver.maxResultSize": RESULT_SIZE_MAX,
        **session_conf(),
    }


@contextlib.contextmanager
def opened_sessions(cluster: Cluster, options: SqlOptions, tables: Mapping[str, str]) -> Iterator[CatalogSessions]:
    """Start Spark in the main thread, and end it. Raises SessionError, PipelineError, and those of `known_relations`.

    This is the one place where the service's JVM begins and ends: servers of other protocols that share its catalog
    (JDBC, Spark Connect) begin behind `_started`, and end before this context does.
    """
    with driver_session("headwater sql-service", service_conf(settings().spark_master)) as start:
        spark = _started(start)
        archives = archives_of(options)
        known = archives.known(known_relations(spark, cluster, options, tables))
        yield CatalogSessions(
            spark, lambda session: cluster.relations(session, known, archives.frames(session, cluster.where))
        )


def checked_files(cluster: Cluster, options: SqlOptions) -> None:
    """Read the files of pipeline and archives, so that their mistakes are known at the start.

    Raises PipelineError and CliError.
    """
    archives_of(options)
    if options.file is not None:
        load(options.file, options.assignments, frozenset(cluster.topics.all()))


def _started(start: Callable[[], SparkSession]) -> SparkSession:
    """Start Spark; PySpark's own handler of SIGINT, which cancels every job of the session, does not stay."""
    before = signal.getsignal(signal.SIGINT)
    spark = start()
    signal.signal(signal.SIGINT, before)
    jvm.find_python_sources(spark)
    return spark
