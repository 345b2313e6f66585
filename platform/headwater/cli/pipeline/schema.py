"""`headwater pipeline schema`: the JSON Schema of pipeline files."""

from __future__ import annotations

import sys

import click

from headwater.cli.shell.errors import CliError


@click.command("schema")
@click.option("-o", "--output", "path", type=click.Path(dir_okay=False), help="Write to this file instead of stdout.")
def schema(path: str | None) -> None:
    """Print the JSON Schema of pipeline files, for editors.

    With the YAML language server, begin a pipeline with `# yaml-language-server: $schema=pipeline.schema.json`.
    """
    import json

    from headwater.pipelines.definition.editor_schema import editor_schema

    text = json.dumps(editor_schema(), indent=2, ensure_ascii=False) + "\n"
    if path is None:
        sys.stdout.write(text)
        return
    try:
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise CliError("schema", f"cannot write {path}: {error.strerror}") from None
