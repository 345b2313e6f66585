"""Loads a pipeline for a command."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headwater.cli.pipeline.reported_errors import user_error
from headwater.cli.shell.options import key_values
from headwater.cli.shell.output import note

if TYPE_CHECKING:
    from headwater.pipelines.definition import Loaded


def load(
    file: str, assignments: tuple[str, ...], existing: frozenset[str] = frozenset(), environment: str = ""
) -> Loaded:
    """Load a pipeline; warnings are printed to stderr, and problems end the command."""
    from headwater.pipelines.errors import PipelineError
    from headwater.pipelines.validation.pipeline_file import load as load_file

    try:
        loaded = load_file(file, key_values(assignments, "--set"), existing, environment)
    except PipelineError as error:
        user_error(error)
    for warning in loaded.warnings:
        note(f"warning: {warning}")
    return loaded
