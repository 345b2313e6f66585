"""Reads a file that declares pipelines, loads or archives, and the files that it names."""

from __future__ import annotations

import os

from headwater.pipelines.definition.includes import ReadFile
from headwater.pipelines.definition.secret_text import SECRET_BYTES_MAX
from headwater.pipelines.definition.yaml_source import FILE_BYTES_MAX
from headwater.pipelines.errors import PipelineError, Problem

__all__ = ["declaring_text", "named_text"]


def declaring_text(path: str, what: str) -> str:
    """The text of a file, cut where it is too long: `yaml_source.read` refuses it. Raises PipelineError.

    `what` it declares: "the pipeline".
    """
    try:
        return _text(path, FILE_BYTES_MAX + 1)
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise PipelineError([Problem(path, 0, 0, "", f"cannot read {what}: {why}")]) from None


def named_text(folder: str) -> ReadFile:
    """Reads files as a file in this folder names them: those that it includes, and those of secrets."""
    return lambda name: _text(os.path.join(folder, name), max(FILE_BYTES_MAX + 1, SECRET_BYTES_MAX))


def _text(path: str, length_max: int) -> str:
    with open(path, encoding="utf-8") as file:
        return file.read(length_max)
