"""`headwater pipeline`: the group of the pipeline commands."""

from __future__ import annotations

import click

from headwater.cli.pipeline.graph import graph
from headwater.cli.pipeline.init import init
from headwater.cli.pipeline.plan import plan
from headwater.cli.pipeline.preview import preview
from headwater.cli.pipeline.replay import replay
from headwater.cli.pipeline.run import run
from headwater.cli.pipeline.schema import schema
from headwater.cli.pipeline.stage_tests import test
from headwater.cli.pipeline.status import status
from headwater.cli.pipeline.stop import stop
from headwater.cli.pipeline.validate import validate


@click.group("pipeline", context_settings={"help_option_names": ["-h", "--help"]})
def app() -> None:
    """Validate and run pipelines written in YAML."""


for command in (test, graph, preview, init, plan, status, stop, replay, validate, schema, run):
    app.add_command(command)
