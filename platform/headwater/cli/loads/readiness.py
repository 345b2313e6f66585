"""`headwater load --ready`: whether topics have passed a time. Starts no JVM: schedulers call it again and again."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Final

from headwater.cli.pipeline.reported_errors import reported_errors
from headwater.cli.shell.errors import EXIT_FAILED, EXIT_NOT_YET, CliError
from headwater.cli.shell.options import command_config

__all__ = ["DEFAULT_IDLE_S", "report_readiness"]

DEFAULT_IDLE_S: Final = 5.0
_NAMED_MAX: Final = 5


def report_readiness(
    topics: Sequence[str], where: str, until: str, lateness_s: float, idle_s: float, output: str
) -> None:
    """Print the result; the command ends with 75 if a partition has not passed."""
    from headwater.pipelines.datasource.brokers import brokers
    from headwater.pipelines.loads.errors import LoadError, LoadFailed
    from headwater.pipelines.loads.offsets.positions import PositionKind, parse_position
    from headwater.pipelines.loads.offsets.readiness_check import check_readiness

    try:
        position = parse_position(until)
    except ValueError as error:
        raise CliError("load", f"--until: {error}") from None
    if position.kind is not PositionKind.TIME:
        raise CliError("load", "--ready needs a time", "give one: --until 2013-01-01T06:00:00Z")
    with reported_errors():
        try:
            found = check_readiness(
                brokers(where, command_config()), topics, position.time_ms + round(lateness_s * 1000), idle_s
            )
        except LoadError as error:
            raise CliError("load", str(error)) from None
        except LoadFailed as error:
            raise CliError("load", str(error), exit_code=EXIT_FAILED) from None
    if output == "json":
        waiting = [{"topic": each.topic, "partition": each.partition, "reason": each.reason} for each in found]
        sys.stdout.write(json.dumps({"ready": not found, "waiting": waiting}, ensure_ascii=False) + "\n")
    if found:
        named = ", ".join(map(str, found[:_NAMED_MAX]))
        more = f", and {len(found) - _NAMED_MAX} more partitions" if len(found) > _NAMED_MAX else ""
        raise CliError("load", f"not yet past {position.text}", f"{named}{more}", exit_code=EXIT_NOT_YET)
    if output != "json":
        sys.stdout.write(f"every partition is past {position.text}\n")
