"""`headwater archive maintain`: compacts and vacuums the tables of archives."""

from __future__ import annotations

import sys

import click

from headwater.cli.archive.loading import archive_options, load_archives, reported_archive_errors, topic_failure
from headwater.cli.shell.checks import require_java
from headwater.cli.shell.driver_session import driver_conf, driver_session
from headwater.cli.shell.errors import EXIT_FAILED, CliError
from headwater.cli.shell.output import note


@click.command("maintain")
@archive_options
@click.option("--conf", "confs", multiple=True, metavar="KEY=VALUE", help="Spark setting; may be repeated.")
def maintain(
    where: str,
    topics: tuple[str, ...],
    assignments: tuple[str, ...],
    registry: str | None,
    bootstrap_servers: str | None,
    confs: tuple[str, ...],
) -> None:
    """Compact the tables' small files, and delete files that no version needs.

    An archiver may run meanwhile, but not for tables in object stores: these it maintains alone.
    """
    from headwater.pipelines.archive.maintenance import compact, sole_driver, vacuum
    from headwater.pipelines.file_systems.opening import file_system
    from headwater.pipelines.file_systems.options import FileSystemOptions
    from headwater.pipelines.seam.table_offsets import table_offsets

    require_java()
    failed = 0
    with reported_archive_errors():
        known, brokers = load_archives(where, assignments, topics, bootstrap_servers, registry)
        specs, loaded = known.specs, known.loaded
        for topic, refusal in known.refused.items():
            note(f"{topic}: {refusal.reason}")
            failed += 1
        loaded.require_secrets()
        conf = driver_conf(loaded, confs)
        options = FileSystemOptions.of(conf)
        with driver_session("headwater archive", conf) as start_spark:
            spark = start_spark()
            for spec in specs:
                try:
                    offsets = table_offsets(spec.table)
                    if offsets is None:
                        sys.stdout.write(f"{spec.topic}: no table at {spec.table}\n")
                        continue
                    files = file_system(spec.table, options, note)
                    with sole_driver(spec.topic, offsets.topic_id, brokers, files) as confirm:
                        compact(spark, spec.table, confirm=confirm)
                        confirm()
                        vacuum(spark, spec.table)
                except Exception as error:  # noqa: BLE001 - one table's failure is its own
                    note(f"{spec.topic}: {topic_failure(error, loaded)}")
                    failed += 1
                else:
                    sys.stdout.write(f"{spec.topic}: {spec.table} is compacted and vacuumed\n")
    if failed:
        what = f"{failed} of {len(specs) + len(known.refused)} tables were not maintained"
        raise CliError("archive maintain", what, exit_code=EXIT_FAILED)
