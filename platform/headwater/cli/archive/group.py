"""`headwater archive`: the group of its commands."""

from __future__ import annotations

import click

from headwater.cli.archive.maintain import maintain
from headwater.cli.archive.run import run
from headwater.cli.archive.status import plan, status
from headwater.cli.archive.verify import verify


@click.group("archive", context_settings={"help_option_names": ["-h", "--help"]})
def app() -> None:
    """Keep topics in Delta tables, each record once, as fresh as declared."""


for command in (plan, run, status, maintain, verify):
    app.add_command(command)
