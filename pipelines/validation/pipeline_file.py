"""Reads and checks a pipeline's file on disk, with the files that it includes or names."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping

from headwater.pipelines.definition import Loaded
from headwater.pipelines.definition.loading import parse
from headwater.pipelines.validation.column_checks import unknown_excepted
from headwater.pipelines.validation.declaring_file import declaring_text, named_text
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
    text = declaring_text(path, "the pipeline")
    folder = os.path.dirname(os.path.abspath(path))
    loaded = parse(
        text,
        path,
        variables,
        existing_topics,
        folder,
        environment,
        os.environ if environ is None else environ,
        named_text(folder),
        check_files,
    )
    return dataclasses.replace(loaded, warnings=(*loaded.warnings, *unknown_excepted(loaded)))
