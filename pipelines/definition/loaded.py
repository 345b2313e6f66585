"""A pipeline with the positions of its parts in the file. Pure."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field

from headwater.pipelines.definition.pipeline import Pipeline
from headwater.pipelines.definition.secret_text import Secrets
from headwater.pipelines.definition.stage import Stage
from headwater.pipelines.definition.yaml_source import Document, Loc
from headwater.pipelines.errors import PipelineError, Problem


@dataclass(frozen=True, slots=True)
class Loaded:
    """A checked pipeline with its positions, so that later errors (Spark's, the broker's) also name file and line.

    `environment` is the selected environment, '' for none. Messages never contain the value of a secret.
    """

    pipeline: Pipeline
    document: Document
    folder: str
    warnings: tuple[Problem, ...] = field(default=())
    environment: str = ""
    secrets: Secrets | None = field(default=None, repr=False, compare=False)

    def path(self, relative: str) -> str:
        """Resolve a path of the file against the file's folder; absolute paths and URIs remain unchanged.

        >>> Loaded(None, None, "/etc/flows").path("schemas/a.json")
        '/etc/flows/schemas/a.json'
        >>> Loaded(None, None, "/etc/flows").path("hdfs://lake/a")
        'hdfs://lake/a'
        """
        if os.path.isabs(relative) or re.match(r"^[a-z][a-z0-9+.-]*:/", relative):
            return relative
        return os.path.normpath(os.path.join(self.folder, relative))

    def problem(self, loc: Loc, message: str, hint: str = "") -> Problem:
        """Return a problem at a position in the file."""
        return self.document.problem(loc, self.redacted(message), hint)

    def redacted(self, text: str) -> str:
        """Return a text, such as a message from Spark or a database, with each secret replaced by its reference."""
        return self.secrets.redacted(text) if self.secrets else text

    def is_included(self, loc: Loc) -> bool:
        """Whether a part of the pipeline is defined in an included file."""
        return bool(self.document.key_mark(loc).file)

    def stage_loc(self, stage: Stage, *more: str | int) -> Loc:
        """Return the path of a stage, or of a part of a stage."""
        return ("stages", self.pipeline.stages.index(stage), *more)

    def input_loc(self, stage: Stage, position: int, *more: str | int) -> Loc:
        """Return the path of a stage's input, or of a part of it: `from` is one source or a list of sources."""
        return self.document.place(self.stage_loc(stage, "from", position, *more))

    def sink_loc(self, stage: Stage, position: int, *more: str | int) -> Loc:
        """Return the path of a stage's sink, or of a part of it: `to` is one sink or a list of sinks."""
        return self.document.place(self.stage_loc(stage, "to", position, *more))

    def require_secrets(self) -> None:
        """Check, before a run, that every secret has a value. Raises PipelineError with every missing secret."""
        missing = self.secrets.missing() if self.secrets else []
        if missing:
            raise PipelineError([self.missing_secret(reference) for reference in missing])

    def missing_secret(self, reference: str) -> Problem:
        """Return the problem of a missing secret, at its first reference in the file."""
        kind, _, name = reference[2:-1].partition(":")
        what = f"the environment has no variable {name}" if kind == "env" else f"the file {name} cannot be read"
        hint = f"export {name}" if kind == "env" else "paths are relative to the pipeline's own folder"
        return self.document.problem(self.document.references.get(reference, ()), f"{reference}: {what}", hint)
