"""`headwater pipeline graph`: a picture of the pipeline's stages with their inputs and outputs."""

from __future__ import annotations

import os
import sys

import click

from headwater.cli.pipeline.options import environment_option, set_option
from headwater.cli.shell.errors import EXIT_FAILED, CliError

FORMATS = ("svg", "mermaid", "dot")
_BY_SUFFIX = {".svg": "svg", ".mmd": "mermaid", ".mermaid": "mermaid", ".dot": "dot", ".gv": "dot"}


@click.command("graph")
@click.argument("file", type=click.Path())
@set_option
@environment_option
@click.option(
    "-o",
    "--format",
    "form",
    type=click.Choice(FORMATS),
    help="Output format.  [default: by the suffix of --output, else svg]",
)
@click.option(
    "--output", "path", type=click.Path(dir_okay=False), metavar="FILE", help="Write to this file instead of stdout."
)
def graph(file: str, assignments: tuple[str, ...], environment: str, form: str | None, path: str | None) -> None:
    """Draw the pipeline in FILE: sources, topics, stages, tables and sinks. Needs neither Spark nor a broker."""
    from headwater.cli.pipeline.loading import load
    from headwater.pipelines.drawing.model import graph_of
    from headwater.pipelines.drawing.svg import as_svg
    from headwater.pipelines.drawing.texts import as_dot, as_mermaid

    loaded = load(file, assignments, environment=environment)
    suffix = os.path.splitext(path or "")[1].lower()
    draw = {"svg": as_svg, "mermaid": as_mermaid, "dot": as_dot}[form or _BY_SUFFIX.get(suffix, "svg")]
    text = draw(graph_of(loaded))
    if path is None:
        sys.stdout.write(text)
        return
    try:
        with open(path, "w", encoding="utf-8") as target:
            target.write(text)
    except OSError as error:
        raise CliError("graph", f"cannot write {path}: {error.strerror}", exit_code=EXIT_FAILED) from None
