"""What a command knows of relations before its statements: the cluster, a pipeline, Delta tables, a registry."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from headwater.api.topic_admin import TopicAdmin
from headwater.cli.pipeline.loading import load
from headwater.cli.shell.errors import EXIT_FAILED, CliError
from headwater.cli.shell.options import client_security, command_config, key_values, settings
from headwater.cli.shell.output import note
from headwater.pipelines.analysis.analysis import analyse
from headwater.pipelines.archive.declared import declared_archives
from headwater.pipelines.archive.errors import ArchiveError, ArchiveFailed
from headwater.pipelines.archive.listing import ArchiveListing
from headwater.pipelines.datasource.brokers import Brokers, brokers
from headwater.pipelines.formats.registry_client import RegistryError
from headwater.pipelines.sql.lake_tables import delta_tables
from headwater.pipelines.sql.registry_columns import Registered, RegistryColumns, own_registry
from headwater.pipelines.sql.relations import Known, Relations, TopicFrames
from headwater.pipelines.sql.shared_views import SharedViews
from headwater.pipelines.sql.topic_names import TopicNames
from headwater.pipelines.sql_text import scanner
from headwater.pipelines.unified.session_archives import SessionArchives

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headwater.cli.sql.options import SqlOptions

__all__ = [
    "Cluster",
    "archive_listing",
    "archives_of",
    "first_listed",
    "known_relations",
    "left_out",
    "registry_address",
]


class Cluster:
    """The cluster that statements read. It is asked when a statement names a topic, and not before."""

    def __init__(self, bootstrap_servers: str) -> None:
        self.bootstrap_servers = bootstrap_servers
        self.where = brokers(bootstrap_servers, command_config())
        self.admin = TopicAdmin(bootstrap_servers, settings().request_timeout_ms, client_security())
        self.topics = TopicNames(self.admin.topic_names)

    def relations(
        self, spark: SparkSession, known: Known, frames: TopicFrames | None = None, shared: SharedViews | None = None
    ) -> Relations:
        """The relations of a session."""
        return Relations(spark, self.where, self.topics, known, frames, shared)


def archives_of(options: SqlOptions, cluster: Cluster | None = None) -> SessionArchives:
    """The archives that the options declare, and with a cluster those that its topics' configs enable.

    Raises PipelineError and CliError.
    """
    if options.archive is None:
        return SessionArchives()
    if cluster is not None:
        return first_listed(archive_listing(options, cluster))
    with _archive_errors():
        return SessionArchives.of(options.archive, _archive_variables(options))


def archive_listing(options: SqlOptions, cluster: Cluster) -> ArchiveListing | None:
    """What lists the archives of the options and of topic configs; None without archives.

    Raises PipelineError and CliError.
    """
    if options.archive is None:
        return None
    with _archive_errors():
        declared = declared_archives(options.archive, _archive_variables(options))
        declared.loaded.require_secrets()
    return ArchiveListing(declared, cluster.where, lambda: registry_address(cluster, options.registry))


def first_listed(listing: ArchiveListing | None) -> SessionArchives:
    """The archives that a listing has now, and notes on those that cannot be. Raises CliError."""
    if listing is None:
        return SessionArchives()
    with _archive_errors():
        found = SessionArchives.listed(listing.now())
    for line in found.refusals():
        note(line)
    return found


def _archive_variables(options: SqlOptions) -> dict[str, str]:
    """The variables of two files are the pipeline's; those of its archives have the values of their own file."""
    return key_values(options.assignments if options.file is None else (), "--set")


@contextlib.contextmanager
def _archive_errors() -> Iterator[None]:
    try:
        yield
    except ArchiveError as error:
        raise CliError("sql", f"--archive: {error}") from None
    except ArchiveFailed as error:
        raise CliError("sql", f"--archive: {error}", exit_code=EXIT_FAILED) from None


def registry_address(cluster: Cluster, url: str | None) -> str | None:
    """A registry's address: as given, '' for none, or else that of the brokers' node."""
    if url is not None:
        return url or None
    return own_registry(cluster.bootstrap_servers, settings().http_port, lambda: cluster.admin.cluster().cluster_id)


def known_relations(spark: SparkSession, cluster: Cluster, options: SqlOptions, tables: Mapping[str, str]) -> Known:
    """What the options say of relations. Raises PipelineError, and CliError for an invalid address."""
    registered = _registered(cluster, options.registry)
    if options.file is None:
        return Known(tables=tables, registered=registered)
    existing = frozenset(cluster.topics.all())
    loaded = load(options.file, options.assignments, existing)
    columns = analyse(spark, loaded, cluster.where).columns
    return Known(columns, loaded, delta_tables(loaded) | dict(tables), registered)


def _registered(cluster: Cluster, url: str | None) -> Callable[[str], Registered | None]:
    """A function that asks the registry, found when it is first needed; a registry that fails is noted once."""
    if url is not None and url:
        try:
            RegistryColumns(url)
        except ValueError as error:
            raise CliError("sql", f"--registry: {error}") from None
    found: list[RegistryColumns | None] = []
    noted: set[str] = set()

    def ask(topic: str) -> Registered | None:
        if not found:
            address = registry_address(cluster, url)
            found.append(RegistryColumns(address) if address else None)
        if found[0] is None:
            return None
        try:
            return found[0].of(topic)
        except RegistryError as error:
            if str(error) not in noted:
                noted.add(str(error))
                note(f"{error}; topics without other columns are raw")
            return None

    return ask


def left_out(spark: SparkSession, where: Brokers, known: Known, statements: Sequence[str]) -> list[str]:
    """Return one line per topic table in the statements from which undecodable records are omitted."""
    from pyspark.errors import PySparkException

    from headwater.pipelines.sources.table_gaps import gaps_of
    from headwater.pipelines.spark.spark_errors import first_line

    if known.loaded is None:
        return []
    asked = {name[0].lower() for text in statements for name in scanner.names(text) if len(name) == 1}
    pipeline = known.loaded.pipeline
    tables = sorted(name for name in pipeline.tables.keys() - pipeline.topics.keys() if name.lower() in asked)
    try:
        return [str(gap) for gap in gaps_of(spark, known.loaded, known.columns, tables, where)]
    except PySparkException as error:
        raise CliError("sql", first_line(error), exit_code=EXIT_FAILED) from None
