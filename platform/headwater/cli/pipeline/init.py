"""`headwater pipeline init`: creates a small starter pipeline."""

from __future__ import annotations

import os

import click

from headwater.cli.shell.errors import CliError
from headwater.cli.shell.output import note
from headwater.pipelines.starters import DEFAULT_TEMPLATE, TEMPLATES, fill, pipeline_name


@click.command("init")
@click.argument("folder", type=click.Path(file_okay=False), default=".")
@click.option("--name", metavar="NAME", help="Name of the pipeline.  [default: the folder's name]")
@click.option(
    "--template",
    type=click.Choice(list(TEMPLATES)),
    default=DEFAULT_TEMPLATE,
    show_default=True,
    help="".join(f"{name}: {each.summary}. " for name, each in TEMPLATES.items()).rstrip(),
)
def init(folder: str, name: str | None, template: str) -> None:
    """Create a small pipeline with schemas, tests and sample records in FOLDER, or in the current directory.

    Existing files are never overwritten. The commands that try the pipeline are printed.
    """
    from headwater.pipelines.definition.model import identifier

    try:
        chosen = identifier(name) if name is not None else pipeline_name(os.path.basename(os.path.abspath(folder)))
    except ValueError as error:
        raise CliError("pipeline init", str(error)) from None
    starter = fill(TEMPLATES[template], chosen, "" if folder == "." else folder)
    files = {os.path.join(folder, path): text for path, text in starter.files.items()}
    for path in files:
        if os.path.lexists(path):
            raise CliError(
                "pipeline init", f"{path} exists and is not overwritten", "give another FOLDER; nothing was written"
            )
    written = []
    try:
        for path, text in files.items():
            os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
            with open(path, "x", encoding="utf-8") as file:
                file.write(text)
            written.append(path)
    except OSError as error:
        said = f"; {', '.join(written)} was written" if written else ""
        raise CliError("pipeline init", f"cannot write {error.filename}: {error.strerror}{said}") from None
    note(f"wrote {', '.join(written)}")
    note("next:")
    for command in starter.commands:
        note(f"  {command}")
