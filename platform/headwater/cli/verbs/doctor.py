"""`headwater doctor`: checks the requirements of Headwater on this machine."""

from __future__ import annotations

import sys

import click

from headwater.cli.shell.checks import (
    Check,
    check_disk,
    check_jars,
    check_java,
    check_packages,
    check_port,
    check_python,
    check_settings,
)
from headwater.cli.shell.output import format_table
from headwater.settings import Settings, SettingsError, load_settings


@click.command()
@click.option("--offline", is_flag=True, help="Do not download missing jars.")
def doctor(offline: bool) -> None:
    """Check settings, Python, Java, packages, jars, ports and disk; the exit code is 1 if a check fails.

    Spark's Delta jars are downloaded into Spark's cache if they are missing.
    """
    settings = Settings()
    problem = None
    try:
        settings = load_settings()
    except SettingsError as error:
        problem = str(error)
    checks = [check_settings(problem), check_python(), check_java(), *check_packages()]
    checks += [check_jars(may_fetch=not offline)]
    checks += [
        check_port("kafka_port", settings.host, settings.kafka_port),
        check_port("http_port", settings.host, settings.http_port),
        check_disk(settings.data_dir),
    ]
    sys.stdout.write(render(checks))
    sys.stdout.flush()
    if any(not check.is_ok for check in checks):
        raise click.exceptions.Exit(1)


def render(checks: list[Check]) -> str:
    """Format one line per check; the correction of a failed check follows below its line."""
    rows = [
        {"state": "ok" if check.is_ok else "PROBLEM", "name": check.name, "found": check.observed} for check in checks
    ]
    table = format_table(rows, {"state": "STATE", "name": "WHAT", "found": "FOUND"}).splitlines()
    lines = [table[0]]
    for line, check in zip(table[1:], checks, strict=True):
        lines.append(line)
        if not check.is_ok:
            lines.append(f"         {check.fix}")
    return "\n".join(lines) + "\n"
