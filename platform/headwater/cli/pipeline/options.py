"""Options shared by commands of `headwater pipeline`."""

from __future__ import annotations

import os
from typing import Final

import click

STATE_DEFAULT: Final = os.path.join(".headwater", "state")

set_option = click.option(
    "--set", "assignments", multiple=True, metavar="NAME=VALUE", help="Value of a variable ${NAME}; may be repeated."
)
environment_option = click.option(
    "--env", "environment", default="", metavar="NAME", help="Environment of the pipeline."
)
checkpoints_option = click.option(
    "--checkpoints",
    metavar="URL",
    help="Place of checkpoints and records that machines share, such as hdfs:///checkpoints.  [default: state folder]",
)
state_option = click.option("--state", metavar="FOLDER", help="State folder.  [default: .headwater/state]")
