"""The options that the commands share, and the archives that they name."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from headwater.cli.pipeline.options import set_option
from headwater.cli.pipeline.reported_errors import reported_errors
from headwater.cli.shell.errors import EXIT_FAILED, CliError
from headwater.cli.shell.options import client_options, key_values, servers
from headwater.cli.shell.output import note

if TYPE_CHECKING:
    from headwater.cli.sql.known_relations import Cluster
    from headwater.pipelines.archive.configured import KnownArchives
    from headwater.pipelines.archive.listing import ArchiveListing
    from headwater.pipelines.datasource.brokers import Brokers
    from headwater.pipelines.definition import Loaded

__all__ = [
    "NO_ARCHIVES",
    "ArchivesOfCommand",
    "archive_options",
    "load_archives",
    "reported_archive_errors",
    "topic_failure",
]

NO_ARCHIVES: Final = "no topic is archived: no file names one, and the config headwater.archive.enable of none is true"

_F = TypeVar("_F", bound=Callable[..., Any])


def archive_options(function: _F) -> _F:
    """Add FILE or ROOT, TOPIC..., `--set`, `--registry` and the brokers' address."""
    for each in (
        client_options,
        click.option(
            "--registry",
            metavar="URL",
            help="Schema registry of topics with headwater.archive.value=registry, if the file declares none.  "
            "[default: the one on the brokers' node, if any]",
        ),
        set_option,
        click.argument("topics", nargs=-1, metavar="[TOPIC]..."),
        click.argument("where", default="", metavar="[FILE|ROOT]"),
    ):
        function = each(function)
    return function


@contextmanager
def reported_archive_errors() -> Iterator[None]:
    """Convert errors of archives and pipelines to lines and an exit code."""
    from headwater.pipelines.archive.errors import ArchiveError, ArchiveFailed
    from headwater.pipelines.loads.errors import LoadFailed

    with reported_errors():
        try:
            yield
        except ArchiveError as error:
            raise CliError("archive", str(error)) from None
        except (ArchiveFailed, LoadFailed) as error:
            raise CliError("archive", str(error), exit_code=EXIT_FAILED) from None


def topic_failure(error: Exception, loaded: Loaded) -> str:
    """One line about what has failed for one topic, while the command goes on with the others."""
    from headwater.pipelines.archive.errors import ArchiveError, ArchiveFailed
    from headwater.pipelines.loads.failures import failure_reason
    from headwater.pipelines.seam.table_offsets import SeamError

    return loaded.redacted(failure_reason(error, ArchiveError, ArchiveFailed, SeamError))


class ArchivesOfCommand:
    """What a command's FILE or ROOT declares, read at once; topic configs are asked when `now` is called.

    Raises ArchiveError and PipelineError.
    """

    def __init__(self, where: str, assignments: Sequence[str], topics: Sequence[str]) -> None:
        from headwater.pipelines.archive.declared import declared_archives

        self._where = where
        self._topics = topics
        self._declared = declared_archives(where, key_values(tuple(assignments), "--set"))
        self._listing: ArchiveListing | None = None

    def now(self, cluster: Cluster, registry: str | None) -> KnownArchives:
        """The archives that there are now; those of the file alone if no broker answers.

        Raises ArchiveError for a topic without an archive, and ArchiveFailed if no broker answers and no file names
        any.
        """
        from headwater.cli.sql.known_relations import registry_address
        from headwater.pipelines.archive.configured import chosen_archives
        from headwater.pipelines.archive.errors import ArchiveFailed
        from headwater.pipelines.archive.listing import ArchiveListing

        self._listing = ArchiveListing(self._declared, cluster.where, lambda: registry_address(cluster, registry))
        try:
            known = self._listing.now()
        except ArchiveFailed as error:
            known = self._listing.declared()
            if not known.specs:
                raise
            note(f"only the archives of {self._where} are known: {error}")
        return chosen_archives(known, self._topics, self._where or "the command line")

    def again(self, present: Collection[str]) -> KnownArchives:
        """The archives that there are by now, while those of some topics run. Raises ArchiveFailed."""
        from headwater.pipelines.archive.configured import chosen_archives

        assert self._listing is not None, "now comes first"
        return chosen_archives(self._listing.now(present), self._topics)


def load_archives(
    where: str,
    assignments: Sequence[str],
    topics: Sequence[str],
    bootstrap_servers: str | None,
    registry: str | None,
) -> tuple[KnownArchives, Brokers]:
    """The archives of a command, and the brokers. Raises as `ArchivesOfCommand` and its `now` do."""
    from headwater.cli.sql.known_relations import Cluster

    declared = ArchivesOfCommand(where, assignments, topics)
    cluster = Cluster(servers(bootstrap_servers))
    return declared.now(cluster, registry), cluster.where
