"""`headwater archive verify`: compares tables with their offsets and with the log."""

from __future__ import annotations

import functools
import json
import sys
from typing import TYPE_CHECKING

import click

from headwater.cli.archive.loading import archive_options, load_archives, reported_archive_errors, topic_failure
from headwater.cli.archive.status import output_option
from headwater.cli.shell.checks import require_java
from headwater.cli.shell.driver_session import driver_conf, driver_session
from headwater.cli.shell.errors import EXIT_FAILED, CliError
from headwater.cli.shell.output import note

if TYPE_CHECKING:
    from headwater.pipelines.archive.archive_file import TopicArchiveSpec
    from headwater.pipelines.archive.verification import ArchiveVerification


@click.command("verify")
@archive_options
@click.option("--conf", "confs", multiple=True, metavar="KEY=VALUE", help="Spark setting; may be repeated.")
@output_option
def verify(
    where: str,
    topics: tuple[str, ...],
    assignments: tuple[str, ...],
    registry: str | None,
    bootstrap_servers: str | None,
    confs: tuple[str, ...],
    output: str,
) -> None:
    """Compare tables with their offsets, and with the log as far as it still has the records. Changes nothing."""
    from headwater.pipelines.archive.archived_columns import archived_columns
    from headwater.pipelines.archive.verification import ArchiveVerification, verify_archive
    from headwater.pipelines.file_systems.opening import file_system
    from headwater.pipelines.file_systems.options import FileSystemOptions

    require_java()
    with reported_archive_errors():
        archives, cluster = load_archives(where, assignments, topics, bootstrap_servers, registry)
        specs, loaded = archives.specs, archives.loaded
        loaded.require_secrets()
        conf = driver_conf(loaded, confs)
        options = FileSystemOptions.of(conf)
        with driver_session("headwater archive", conf) as start_spark:
            spark = start_spark()

            def verified(spec: TopicArchiveSpec) -> ArchiveVerification:
                try:
                    files = file_system(spec.table, options, note)
                    known = functools.partial(archived_columns, spark, loaded, spec.topic, cluster)
                    return verify_archive(spark, spec, cluster, files, known)
                except Exception as error:  # noqa: BLE001 - one archive's failure is its own
                    return ArchiveVerification.failed(spec.topic, spec.table, topic_failure(error, loaded))

            found = [verified(spec) for spec in specs]
    if output == "json":
        sys.stdout.write(json.dumps([each.value() for each in found], ensure_ascii=False, indent=1) + "\n")
    else:
        for each in found:
            sys.stdout.write(f"{each}\n")
    for topic, refusal in archives.refused.items():
        note(f"{topic}: {refusal.reason}")
    if archives.refused:
        raise CliError("archive verify", "there are archives that cannot be")
    failed = sum(not each.is_compared for each in found)
    if any(each.problems for each in found if each.is_compared):
        raise CliError("archive verify", "there are differences", exit_code=EXIT_FAILED)
    if failed:
        what = f"{failed} of {len(found)} tables could not be compared"
        raise CliError("archive verify", what, exit_code=EXIT_FAILED)
