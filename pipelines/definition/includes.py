"""`include:`: files merged into a pipeline; each value keeps its own file and line. Pure: the reader is an argument.

A name defined in two files is a problem: no file overrides another. Paths in an included file are relative to the
pipeline's own folder.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from headwater.pipelines.definition.yaml_source import Document, Loc, Mark, field_name, read
from headwater.pipelines.errors import PipelineError, Problem

INCLUDES_MAX = 50  # included files of one pipeline, nested ones counted

ReadFile = Callable[[str], str]

_LISTS = ("stages", "tests")
# Levels of mappings that are merged by name; below, a duplicate name is a problem.
_LEVELS = {"variables": 1, "topics": 1, "tables": 1, "spark": 1, "environments": 3}


def include(document: Document, read_file: ReadFile) -> None:
    """Merge the files under `include` into the document.

    `read_file` returns the text of a path as written in the file, or raises OSError or UnicodeDecodeError. Raises
    PipelineError with every problem of every file.
    """
    problems: list[Problem] = []
    seen: set[str] = {os.path.normpath(os.path.basename(document.file))}
    waiting = [(document, ("include", i), path) for i, path in enumerate(_paths(document, problems))]
    while waiting:
        source, loc, path = waiting.pop(0)
        name = os.path.normpath(path)
        if name in seen:
            continue  # two files may include a third
        seen.add(name)
        if len(seen) > INCLUDES_MAX + 1:
            problems.append(source.problem(loc, f"more than {INCLUDES_MAX} files are included"))
            break
        try:
            part = read(read_file(path), os.path.join(os.path.dirname(document.file), path))
        except (OSError, UnicodeDecodeError) as error:
            why = (error.strerror or str(error)) if isinstance(error, OSError) else "it is not UTF-8 text"
            hint = "paths are relative to the pipeline's own folder"
            problems.append(source.problem(loc, f"cannot read {path}: {why}", hint))
            continue
        except PipelineError as error:
            problems += error.problems
            continue
        if not isinstance(part.values, dict):
            problems.append(part.problem((), "an included file is a mapping of fields"))
            continue
        waiting += [(part, ("include", i), more) for i, more in enumerate(_paths(part, problems))]
        _merge(document, part, problems)
    if problems:
        raise PipelineError(problems)


def _paths(document: Document, problems: list[Problem]) -> list[str]:
    listed = document.values.get("include")
    found = [listed] if isinstance(listed, str) else listed if isinstance(listed, list) else []
    paths = [path for path in found if isinstance(path, str)]
    problems += [
        document.problem(("include",), f"the path {path} cannot have variables") for path in paths if "${" in path
    ]
    return [path for path in paths if "${" not in path]


def _merge(document: Document, part: Document, problems: list[Problem]) -> None:
    for key, value in part.values.items():
        if key == "include":
            continue
        if key in _LISTS and isinstance(value, list) and isinstance(document.values.setdefault(key, []), list):
            first = len(document.values[key])
            document.values[key] += value
            document.keys.setdefault((key,), _of(part, part.keys[(key,)]))
            document.marks.setdefault((key,), _of(part, part.marks[(key,)]))
            for index in range(len(value)):
                _take_marks(document, part, (key, index), (key, first + index))
        else:
            _put(document, part, document.values, (key,), value, _LEVELS.get(key, 0), problems)


def _put(
    document: Document,
    part: Document,
    into: dict[str, Any],
    loc: Loc,
    value: Any,
    levels: int,
    problems: list[Problem],
) -> None:
    key = str(loc[-1])
    if key not in into:
        into[key] = value
        _take_marks(document, part, loc, loc)
    elif levels and isinstance(into[key], dict) and isinstance(value, dict):
        for name, child in value.items():
            _put(document, part, into[key], (*loc, name), child, levels - 1, problems)
    else:
        first, second = document.key_mark(loc), part.key_mark(loc)
        where = f"{first.file or document.file}:{first.line}"
        what = f"'{key}' is given in {where} already"
        problems.append(Problem(part.file, second.line, second.column, field_name(loc), what, "remove one"))


def _of(part: Document, mark: Mark) -> Mark:
    return Mark(mark.line, mark.column, mark.block, mark.file or part.file)


def _take_marks(document: Document, part: Document, source: Loc, target: Loc) -> None:
    for loc, mark in part.marks.items():
        if loc[: len(source)] == source:
            document.marks[(*target, *loc[len(source) :])] = _of(part, mark)
    for loc, mark in part.keys.items():
        if loc[: len(source)] == source:
            document.keys[(*target, *loc[len(source) :])] = _of(part, mark)
