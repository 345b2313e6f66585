"""The state folder of a pipeline given by the user."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from headwater.cli.pipeline.options import STATE_DEFAULT
from headwater.cli.shell.errors import CliError

if TYPE_CHECKING:
    from headwater.pipelines.deployment.state_folder import StateFolder


def state_path(state: str | None) -> str:
    """Return the given state folder, or the default one."""
    return state or STATE_DEFAULT


def named_folder(pipeline: str, state: str | None) -> tuple[StateFolder, list[str]]:
    """Return the state folder of a pipeline given by name or file, and the stages named in the file."""
    from headwater.pipelines.definition.model import identifier
    from headwater.pipelines.definition.yaml_source import FILE_BYTES_MAX, read
    from headwater.pipelines.deployment.state_folder import StateFolder
    from headwater.pipelines.errors import PipelineError

    if not os.path.isfile(pipeline):
        try:
            return StateFolder(state_path(state), identifier(pipeline)), []
        except ValueError:
            raise CliError("pipeline", f"there is no file {pipeline}, and that is not the name of a pipeline") from None
    try:
        with open(pipeline, encoding="utf-8") as file:
            values = read(file.read(FILE_BYTES_MAX + 1), pipeline).values
        name = identifier(str(values["pipeline"]))
    except (PipelineError, OSError, UnicodeDecodeError, KeyError, TypeError, ValueError) as error:
        raise CliError("pipeline", f"{pipeline} does not name its pipeline: {error}") from None
    stages = values.get("stages")
    names = [str(each["name"]) for each in stages if isinstance(each, dict) and "name" in each] if stages else []
    return StateFolder(state_path(state), name), names


def all_folders(state: str | None) -> list[tuple[StateFolder, list[str]]]:
    """Return the state folders of all pipelines that have run; without a file, no stage names are known."""
    from headwater.pipelines.deployment.state_folder import StateFolder

    path = state_path(state)
    return [(StateFolder(path, name), []) for name in StateFolder.pipelines(path)]
