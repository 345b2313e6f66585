"""The state of a pipeline given by the user."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headwater.cli.pipeline.checkpoint_place import known_or_wanted_place
from headwater.cli.pipeline.options import STATE_DEFAULT
from headwater.cli.shell.errors import CliError

if TYPE_CHECKING:
    from headwater.pipelines.deployment.state_folder import StateFolder


@dataclass(frozen=True, slots=True)
class NamedPipeline:
    """A pipeline, with the stages of its file if that was given.

    `local` is its folder on this machine, with the lock and the logs; `folder` has its checkpoints.
    """

    local: StateFolder
    folder: StateFolder
    stages: tuple[str, ...] = ()

    @property
    def is_here(self) -> bool:
        """Whether the checkpoints are in the local state folder, so that no other machine runs the pipeline."""
        return self.folder.root == self.local.root


def state_path(state: str | None) -> str:
    """Return the given state folder, or the default one."""
    return state or STATE_DEFAULT


def named_pipeline(pipeline: str, state: str | None, checkpoints: str | None) -> NamedPipeline:
    """Return the state of a pipeline given by name or file. Raises CliError and FileSystemError."""
    from headwater.pipelines.definition.model import identifier
    from headwater.pipelines.definition.yaml_source import FILE_BYTES_MAX, read
    from headwater.pipelines.errors import PipelineError

    if not os.path.isfile(pipeline):
        try:
            return _at(identifier(pipeline), state, checkpoints, "")
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
    in_file = str(values.get("checkpoints") or "")
    if "${" in in_file:
        in_file = ""  # its variables have values in a run only, which the state folder remembers
    return _at(name, state, checkpoints, in_file, tuple(names))


def _at(
    pipeline: str, state: str | None, checkpoints: str | None, in_file: str, stages: tuple[str, ...] = ()
) -> NamedPipeline:
    from headwater.pipelines.deployment.state_folder import StateFolder

    path = state_path(state)
    place = known_or_wanted_place(checkpoints, in_file, path, pipeline)
    local = StateFolder(path, pipeline)
    return NamedPipeline(local, StateFolder(place, pipeline) if place else local, stages)


def all_pipelines(state: str | None, checkpoints: str | None) -> list[NamedPipeline]:
    """Return the pipelines that have run with the state folder, or at the URL; no stages of files are known."""
    from headwater.pipelines.deployment.state_folder import StateFolder

    path = state_path(state)
    names = StateFolder.pipelines(path)
    if checkpoints:
        names += [name for name in StateFolder.pipelines_at(checkpoints) if name not in names]
    return [_at(name, state, checkpoints, "") for name in names]
