"""`headwater pipeline validate`: checks the file of a pipeline."""

from __future__ import annotations

import sys

import click

from headwater.cli.pipeline.loading import load
from headwater.cli.pipeline.options import environment_option, set_option


@click.command("validate")
@click.argument("file", type=click.Path())
@set_option
@environment_option
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True)
def validate(file: str, assignments: tuple[str, ...], environment: str, output: str) -> None:
    """Check FILE, without Spark and without a broker; `plan` shows what a run would do."""
    loaded = load(file, assignments, environment=environment)
    pipeline = loaded.pipeline
    if output == "json":
        import json

        found = {
            "pipeline": pipeline.pipeline,
            "file": file,
            "environment": environment,
            "stages": [stage.name for stage in pipeline.stages],
            "topics": list(pipeline.topics),
            "tables": list(pipeline.tables),
            "tests": [test.name for test in pipeline.tests],
            "warnings": [str(warning) for warning in loaded.warnings],
        }
        sys.stdout.write(json.dumps(found, indent=2, ensure_ascii=False) + "\n")
    else:
        stages = ", ".join(stage.name for stage in pipeline.stages)
        sys.stdout.write(f"{file} is a correct pipeline: {pipeline.pipeline}, with the stages {stages}\n")
