"""`headwater archive verify`: compares tables with their offsets and with the log."""

from __future__ import annotations

import functools
import json
import os
import sys
import tempfile

import click

from headwater.cli.archive.loading import archive_options, load_archives, reported_archive_errors
from headwater.cli.archive.status import output_option
from headwater.cli.shell.checks import require_java
from headwater.cli.shell.errors import EXIT_FAILED, CliError
from headwater.cli.shell.options import command_config, key_values, servers, settings
from headwater.cli.shell.output import note


@click.command("verify")
@archive_options
@click.option("--conf", "confs", multiple=True, metavar="KEY=VALUE", help="Spark setting; may be repeated.")
@output_option
def verify(
    file: str,
    topics: tuple[str, ...],
    assignments: tuple[str, ...],
    bootstrap_servers: str | None,
    confs: tuple[str, ...],
    output: str,
) -> None:
    """Compare tables with their offsets, and with the log as far as it still has the records. Changes nothing."""
    from headwater.pipelines.archive.running import topic_columns
    from headwater.pipelines.archive.verification import verify_archive
    from headwater.pipelines.datasource.brokers import brokers
    from headwater.pipelines.file_systems.opening import file_system
    from headwater.pipelines.file_systems.options import FileSystemOptions
    from headwater.pipelines.spark.session import close_session, open_session

    require_java()
    with reported_archive_errors():
        specs, loaded = load_archives(file, assignments, topics)
        loaded.require_secrets()
        conf = {"spark.master": settings().spark_master}
        conf |= {name: text.reveal() for name, text in loaded.pipeline.spark.items()} | key_values(confs, "--conf")
        options = FileSystemOptions.of(conf)
        where = brokers(servers(bootstrap_servers), command_config())
        with tempfile.TemporaryDirectory(prefix="headwater-archive-") as folder:
            log, warehouse = os.path.join(folder, "spark.log"), os.path.join(folder, "warehouse")
            spark = open_session("headwater archive", log, {"spark.sql.warehouse.dir": warehouse, **conf})
            try:
                found = [
                    verify_archive(
                        spark,
                        spec,
                        where,
                        file_system(spec.table, options, note),
                        functools.partial(topic_columns, spark, loaded, where, spec.topic),
                    )
                    for spec in specs
                ]
            finally:
                close_session()
    if output == "json":
        sys.stdout.write(json.dumps([each.value() for each in found], ensure_ascii=False, indent=1) + "\n")
    else:
        for each in found:
            sys.stdout.write(f"{each}\n")
    if any(each.problems for each in found):
        raise CliError("archive verify", "there are differences", exit_code=EXIT_FAILED)
