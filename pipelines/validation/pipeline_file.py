"""Reads and checks a pipeline's file on disk, with the files that it includes or names."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping

from headwater.pipelines.definition import Loaded
from headwater.pipelines.definition.loading import parse
from headwater.pipelines.definition.secret_text import SECRET_BYTES_MAX
from headwater.pipelines.definition.yaml_source import FILE_BYTES_MAX
from headwater.pipelines.errors import PipelineError, Problem
from headwater.pipelines.validation.column_checks import unknown_excepted
from headwater.pipelines.validation.named_files import check_files


def load(
    path: str,
    variables: Mapping[str, str] | None = None,
    existing_topics: frozenset[str] = frozenset(),
    environment: str = "",
    environ: Mapping[str, str] | None = None,
) -> Loaded:
    """Read and check a file. Raises PipelineError with every problem; an unreadable file is also a problem.

    `environment` selects one of the file's `environments`; `environ` are the variables of `${env:NAME}`, by default the
    variables of this process. A missing secret is a warning here; `Loaded.require_secrets` reports it as a problem.
    """
    try:
        text = _text(path, FILE_BYTES_MAX + 1)
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise PipelineError([Problem(path, 0, 0, "", f"cannot read the pipeline: {why}")]) from None
    folder = os.path.dirname(os.path.abspath(path))
    loaded = parse(
        text,
        path,
        variables,
        existing_topics,
        folder,
        environment,
        os.environ if environ is None else environ,
        lambda name: _text(os.path.join(folder, name), max(FILE_BYTES_MAX + 1, SECRET_BYTES_MAX)),
        check_files,
    )
    return dataclasses.replace(loaded, warnings=(*loaded.warnings, *unknown_excepted(loaded)))


def _text(path: str, length_max: int) -> str:
    with open(path, encoding="utf-8") as file:
        return file.read(length_max)
