"""A template of a pipeline, and the files and commands that it becomes for a pipeline's name and folder."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

PIPELINE_FILE: Final = "pipeline.yaml"
PARTITIONS: Final = 3  # of each topic, as the templates declare them

_IGNORED: Final = ".headwater/\nlake/\n"
_REMARKS: Final = {"up": "    # in another terminal"}


@dataclass(frozen=True, slots=True)
class SampleRecords:
    """Sample records of one topic, one a line; with `is_keyed` a tab separates key and value."""

    topic: str
    path: str
    records: str
    is_keyed: bool = False
    configs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Template:
    """A pipeline whose texts have `@NAME@` for its name and `@FILE@` for its file.

    `samples` are in the order in which they are produced. `query` shows the result of a run.
    """

    summary: str
    pipeline: str
    files: Mapping[str, str]
    samples: tuple[SampleRecords, ...]
    query: str


@dataclass(frozen=True, slots=True)
class Starter:
    """Texts of the files by their paths below the pipeline's folder, and the commands to try them with."""

    files: Mapping[str, str] = field(repr=False)
    commands: tuple[str, ...]


def fill(template: Template, name: str, folder: str = "") -> Starter:
    """The files of a pipeline with this name, and the commands for them in `folder`."""

    def named(text: str) -> str:
        return text.replace("@NAME@", name).replace("@FILE@", PIPELINE_FILE)

    files = {PIPELINE_FILE: template.pipeline, **template.files}
    files |= {sample.path: sample.records for sample in template.samples}
    file = os.path.join(folder, PIPELINE_FILE)
    commands = [
        ["headwater", "pipeline", "test", file],
        ["headwater", "up"],
        *(_creation(sample) for sample in template.samples),
        *(_production(sample, folder) for sample in template.samples),
        ["headwater", "pipeline", "run", file],
        ["headwater", "sql", "--pipeline", file, "-e", template.query],
    ]
    return Starter(
        {path: named(text) for path, text in files.items()} | {".gitignore": _IGNORED},
        tuple(named(shlex.join(command)) + _REMARKS.get(command[1], "") for command in commands),
    )


def _creation(sample: SampleRecords) -> list[str]:
    configs = [word for config in sample.configs for word in ("--config", config)]
    return ["headwater", "topic", "create", sample.topic, "--partitions", str(PARTITIONS), *configs]


def _production(sample: SampleRecords, folder: str) -> list[str]:
    key = ["--key-separator", "\\t", "--tombstone"] if sample.is_keyed else []
    return ["headwater", "produce", sample.topic, os.path.join(folder, sample.path), *key]
