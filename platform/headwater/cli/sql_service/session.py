"""The JVM of the SQL service: opened by the first query that needs it, closed when idle."""

from __future__ import annotations

import contextlib
import signal
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from headwater.cli.pipeline.loading import load
from headwater.cli.shell.driver_session import driver_session
from headwater.cli.shell.options import settings
from headwater.cli.shell.output import note
from headwater.cli.sql.known_relations import (
    Cluster,
    archive_listing,
    archives_of,
    first_listed,
    known_relations,
)
from headwater.cli.sql.options import SqlOptions
from headwater.cli.sql_service.catalog_query import CatalogSessions
from headwater.cli.sql_service.foreign_servers import ForeignServers
from headwater.cli.sql_service.foreign_topics import ServedTopics
from headwater.cli.sql_service.served_archives import ServedArchives, ServedState
from headwater.pipelines.spark import jvm
from headwater.pipelines.sql.connect_server import connect_conf
from headwater.pipelines.sql.foreign_views import ForeignViews
from headwater.pipelines.sql.lake_tables import forget_lake_table
from headwater.pipelines.sql.relations import Relations
from headwater.pipelines.sql.shared_views import GLOBAL_DATABASE, TOPICS, ServedViews
from headwater.pipelines.sql.thrift_server import open_served_session, thrift_conf

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["OpenedService", "checked_files", "opened_service", "service_conf"]

#: Of one query's result, which the JVM holds as it was computed; larger ones fail instead of filling the heap.
RESULT_SIZE_MAX: Final = "512m"


def service_conf(master: str) -> dict[str, str]:
    """The settings of the session: pools share Spark fairly, each with the queries of one session."""
    return {
        "spark.master": master,
        "spark.scheduler.mode": "FAIR",
        "spark.driver.maxResultSize": RESULT_SIZE_MAX,
        GLOBAL_DATABASE: TOPICS,
        # Views and tables end with the service: the next one makes them again. Hive's catalog would leave a database.
        "spark.sql.catalogImplementation": "in-memory",
        # The parser would put the environment and settings into a text (`${env:HOME}`) before any plan can be judged.
        "spark.sql.variable.substitute": "false",
    }


@dataclass(frozen=True, slots=True)
class OpenedService:
    """What runs in the service's JVM; `servers` is None without other protocols."""

    sessions: CatalogSessions
    servers: ForeignServers | None = None


@contextlib.contextmanager
def opened_service(
    cluster: Cluster, options: SqlOptions, tables: Mapping[str, str], protocols: frozenset[str] = frozenset()
) -> Iterator[OpenedService]:
    """Start Spark in the main thread, and end it. Raises SessionError, PipelineError, and those of `known_relations`.

    This is the one place where the service's JVM begins and ends. `protocols` are those of `foreign_servers`.
    """
    conf = service_conf(settings().spark_master)
    if protocols:
        conf |= {**connect_conf(), **thrift_conf()}
    opened = open_served_session if protocols else None
    with driver_session("headwater sql-service", conf, opened) as start:
        spark = _started(start)
        listing = archive_listing(options, cluster)
        first = first_listed(listing)
        views = ServedViews(spark, keeps=bool(protocols))

        def forget(name: str, path: str) -> None:
            with views.lock:
                forget_lake_table(spark, name, path)

        archives = ServedArchives(listing, first, known_relations(spark, cluster, options, tables), note, forget)

        def relations(session: SparkSession, state: ServedState) -> Relations:
            return cluster.relations(session, state.known, state.archives.frames(session, cluster.where), views)

        sessions = CatalogSessions(spark, relations, views, archives)
        archives.start()
        try:
            if not protocols:
                yield OpenedService(sessions)
                return
            with _served(spark, cluster, archives, views, protocols) as servers:
                yield OpenedService(sessions, servers)
        finally:
            archives.stop()


@contextlib.contextmanager
def _served(
    spark: SparkSession,
    cluster: Cluster,
    archives: ServedArchives,
    views: ServedViews,
    protocols: frozenset[str],
) -> Iterator[ForeignServers]:
    kept = ForeignViews(spark, views, ServedTopics(spark, cluster, archives), note)
    with tempfile.TemporaryDirectory(prefix="headwater-sql-") as folder:
        servers = ForeignServers(spark, kept, folder, protocols)
        servers.start()
        try:
            yield servers
        finally:
            servers.stop()


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
