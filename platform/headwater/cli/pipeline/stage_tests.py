"""`headwater pipeline test`: runs a pipeline's tests on given rows, without a broker."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from typing import TYPE_CHECKING

import click

from headwater.cli.pipeline.options import environment_option, set_option
from headwater.cli.shell.errors import EXIT_FAILED
from headwater.cli.shell.options import key_values
from headwater.cli.shell.output import note

if TYPE_CHECKING:
    from headwater.pipelines.testing.results import Judged


@click.command("test")
@click.argument("file", type=click.Path())
@set_option
@environment_option
@click.option("--name", "names", multiple=True, metavar="TEST", help="Run this test only; may be repeated.")
@click.option("--conf", "confs", multiple=True, metavar="KEY=VALUE", help="Spark setting; may be repeated.")
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True)
def test(
    file: str,
    assignments: tuple[str, ...],
    environment: str,
    names: tuple[str, ...],
    confs: tuple[str, ...],
    output: str,
) -> None:
    """Run the tests of the pipeline in FILE, without a broker.

    The exit code is 1 if a test failed, 2 if the file or a test is invalid.
    """
    from headwater.cli.pipeline.loading import load
    from headwater.cli.pipeline.reported_errors import reported_errors
    from headwater.cli.shell.checks import require_java
    from headwater.pipelines.spark.session import close_session, open_session
    from headwater.pipelines.testing.results import summary
    from headwater.pipelines.testing.running import StageTests, chosen, session_settings

    loaded = load(file, assignments, environment=environment)

    def print_result(result: Judged) -> None:
        if output == "text":
            sys.stdout.write("\n".join(result.lines()) + "\n")
            sys.stdout.flush()

    with reported_errors(), tempfile.TemporaryDirectory(prefix="headwater-test-") as folder:
        tests = chosen(loaded, names)
        require_java()
        note("starting Spark, which takes a few seconds")
        conf = session_settings(loaded, {"spark.sql.warehouse.dir": folder, **key_values(confs, "--conf")})
        spark = open_session(
            f"headwater test {loaded.pipeline.pipeline}", os.path.join(folder, "spark.log"), conf, few_rows=True
        )
        try:
            results = StageTests(spark, loaded, tests).run(print_result)
        finally:
            close_session()
    failed = sum(not result.passed for result in results)
    if output == "json":
        found = {
            "pipeline": loaded.pipeline.pipeline,
            "passed": len(results) - failed,
            "failed": failed,
            "tests": [result.as_dict() for result in results],
        }
        sys.stdout.write(json.dumps(found, indent=2, ensure_ascii=False) + "\n")
    else:
        sys.stdout.write(summary(results) + "\n")
    if failed:
        raise click.exceptions.Exit(EXIT_FAILED)
