"""`headwater pipeline init`: creates a small starter pipeline."""

from __future__ import annotations

import os

import click

from headwater.cli.shell.errors import CliError
from headwater.cli.shell.output import note


@click.command("init")
@click.argument("folder", type=click.Path(file_okay=False), default=".")
@click.option("--name", metavar="NAME", help="Name of the pipeline.  [default: the folder's name]")
def init(folder: str, name: str | None) -> None:
    """Create a small pipeline with a schema and a test in FOLDER, or in the current directory.

    Existing files are never overwritten.
    """
    from headwater.pipelines.definition.model import identifier
    from headwater.pipelines.definition.starter import pipeline_name, starter_files

    try:
        chosen = identifier(name) if name is not None else pipeline_name(os.path.basename(os.path.abspath(folder)))
    except ValueError as error:
        raise CliError("pipeline init", str(error)) from None
    files = {os.path.join(folder, path): text for path, text in starter_files(chosen).items()}
    for path in files:
        if os.path.lexists(path):
            raise CliError(
                "pipeline init", f"{path} exists and stays as it is", "give another FOLDER; nothing was written"
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
    first = next(iter(files))
    note(f"wrote {', '.join(written)}")
    note(f"next: headwater pipeline test {first}, then headwater pipeline run {first}")
