"""`headwater load --verify`: compares a target with its manifests, and with the log where it still exists."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping

from headwater.cli.pipeline.reported_errors import reported_errors
from headwater.cli.shell.driver_session import driver_session
from headwater.cli.shell.errors import EXIT_FAILED, CliError
from headwater.cli.shell.options import command_config, settings

__all__ = ["verify_target"]


def verify_target(url: str, where: str, conf: Mapping[str, str], output: str) -> None:
    """Verify and print the result; the command fails if there are problems."""
    from headwater.pipelines.datasource.brokers import brokers
    from headwater.pipelines.file_systems.opening import file_system
    from headwater.pipelines.file_systems.options import FileSystemOptions
    from headwater.pipelines.loads.options import absolute
    from headwater.pipelines.loads.running import told_in_a_line
    from headwater.pipelines.loads.verification import verify

    target = absolute(url.rstrip("/"))
    conf = {"spark.master": settings().spark_master, **conf}
    with reported_errors(), driver_session("headwater load", conf) as start_spark, told_in_a_line():
        files = file_system(target, FileSystemOptions.of(conf))
        found = verify(start_spark(), files, target, brokers(where, command_config()))
    sys.stdout.write(
        json.dumps(found.value(), ensure_ascii=False, indent=1) + "\n" if output == "json" else f"{found}\n"
    )
    if found.problems:
        raise CliError("load", f"{target} is not as it should be", exit_code=EXIT_FAILED)
