"""`headwater archive maintain`: compacts and vacuums the tables of archives."""

from __future__ import annotations

import os
import sys
import tempfile

import click

from headwater.cli.archive.loading import archive_options, load_archives, reported_archive_errors
from headwater.cli.shell.checks import require_java
from headwater.cli.shell.errors import EXIT_FAILED, CliError
from headwater.cli.shell.options import key_values, settings
from headwater.cli.shell.output import note


@click.command("maintain")
@archive_options
@click.option("--conf", "confs", multiple=True, metavar="KEY=VALUE", help="Spark setting; may be repeated.")
def maintain(
    file: str,
    topics: tuple[str, ...],
    assignments: tuple[str, ...],
    bootstrap_servers: str | None,  # noqa: ARG001 - an option of all commands
    confs: tuple[str, ...],
) -> None:
    """Compact the tables' small files, and delete files that no version needs. An archiver may run meanwhile."""
    from pyspark.errors import PySparkException

    from headwater.pipelines.archive.errors import ArchiveFailed
    from headwater.pipelines.archive.maintenance import compact, vacuum
    from headwater.pipelines.seam.table_offsets import SeamError, table_offsets
    from headwater.pipelines.spark.session import close_session, open_session
    from headwater.pipelines.spark.spark_errors import first_line

    require_java()
    failed = 0
    with reported_archive_errors():
        specs, loaded = load_archives(file, assignments, topics)
        loaded.require_secrets()
        conf = {"spark.master": settings().spark_master}
        conf |= {name: text.reveal() for name, text in loaded.pipeline.spark.items()} | key_values(confs, "--conf")
        with tempfile.TemporaryDirectory(prefix="headwater-archive-") as folder:
            log, warehouse = os.path.join(folder, "spark.log"), os.path.join(folder, "warehouse")
            spark = open_session("headwater archive", log, {"spark.sql.warehouse.dir": warehouse, **conf})
            try:
                for spec in specs:
                    try:
                        if table_offsets(spec.table) is None:
                            sys.stdout.write(f"{spec.topic}: no table at {spec.table}\n")
                            continue
                        compact(spark, spec.table)
                        vacuum(spark, spec.table)
                    except (ArchiveFailed, SeamError, PySparkException) as error:
                        reason = first_line(error) if isinstance(error, PySparkException) else str(error)
                        note(f"{spec.topic}: {loaded.redacted(reason)}")
                        failed += 1
                    else:
                        sys.stdout.write(f"{spec.topic}: {spec.table} is compacted and vacuumed\n")
            finally:
                close_session()
    if failed:
        what = f"{failed} of {len(specs)} tables were not maintained"
        raise CliError("archive maintain", what, exit_code=EXIT_FAILED)
