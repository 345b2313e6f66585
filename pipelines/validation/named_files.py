"""Checks of the files that a pipeline names (Python, schemas, tests' rows) before a start; no code is run."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator

from headwater.pipelines.definition import (
    FilesSource,
    FilesTable,
    Loaded,
    PythonFunction,
    PythonSink,
    PythonStep,
    StatefulStep,
)
from headwater.pipelines.definition.file_formats import is_columns
from headwater.pipelines.definition.topics import FROM_REGISTRY
from headwater.pipelines.definition.yaml_source import Loc
from headwater.pipelines.errors import Problem, nearest
from headwater.pipelines.formats import json_schema

FILE_BYTES_MAX = 4 * 1024 * 1024  # of code or a schema; a larger file is data, named by mistake


def check_files(loaded: Loaded) -> list[Problem]:
    """Problems of the files that can be found without Spark."""
    from headwater.pipelines.validation.column_checks import check_columns
    from headwater.pipelines.validation.stage_test_checks import check_tests

    return [*_schemas(loaded), *_code(loaded), *check_tests(loaded), *check_columns(loaded)]


def _missing(loaded: Loaded, loc: Loc, path: str) -> list[Problem]:
    full = loaded.path(path)
    if "://" in full or os.path.isfile(full):
        return []
    return [loaded.problem(loc, f"there is no file {full}", "paths are relative to the pipeline's own folder")]


def _schemas(loaded: Loaded) -> Iterator[Problem]:
    pipeline = loaded.pipeline
    for name, topic in pipeline.topics.items():
        loc: Loc = ("topics", name)
        if topic.schema_file is not None:
            yield from _schema(loaded, (*loc, "schema"), topic.schema_file, topic.value, topic.message)
        if topic.key_schema not in (None, FROM_REGISTRY) and topic.key is not None:
            yield from _schema(loaded, (*loc, "key_schema"), str(topic.key_schema), topic.key)
        for event, declared in topic.events.items():
            if declared.schema_file is not None:
                where = (*loc, "events", event, "schema")
                yield from _schema(loaded, where, declared.schema_file, topic.value, declared.message)
    for name, table in pipeline.tables.items():
        if isinstance(table, FilesTable) and table.schema_source and not is_columns(table.schema_source):
            yield from _missing(loaded, ("tables", name, "schema"), table.schema_source)
    for stage in pipeline.stages:
        for position, source in enumerate(stage.inputs):
            if isinstance(source, FilesSource) and source.schema_source and not is_columns(source.schema_source):
                yield from _missing(loaded, loaded.input_loc(stage, position, "schema"), source.schema_source)


def _schema(loaded: Loaded, loc: Loc, file: str, value: str, message: str | None = None) -> Iterator[Problem]:
    missing = _missing(loaded, loc, file)
    yield from missing
    path = loaded.path(file)
    if missing or "://" in path:
        return
    try:
        with open(path, encoding="utf-8") as text:
            check_schema(text.read(json_schema.SCHEMA_BYTES_MAX + 1), value, message)
    except UnicodeDecodeError:
        yield loaded.problem(loc, f"cannot read the schema {path}: it is not UTF-8 text")
    except OSError as error:
        yield loaded.problem(loc, f"cannot read the schema {path}: {error.strerror}")
    except ValueError as error:
        yield loaded.problem(loc, f"the schema {path} cannot be used: {error}")


def check_schema(text: str, value: str, message: str | None) -> None:
    """Check that a schema's text defines columns for its format. Raises ValueError."""
    if len(text) > json_schema.SCHEMA_BYTES_MAX:
        raise ValueError(f"it is larger than {json_schema.SCHEMA_BYTES_MAX} bytes")
    if value == "avro":
        from headwater.pipelines.formats.avro.columns import columns, parsed

        columns(parsed(text, new=True))
    elif value == "protobuf":
        from headwater.pipelines.formats.protobuf.columns import columns as fields_of
        from headwater.pipelines.formats.protobuf.columns import message_of, pool_of

        fields_of(message_of(pool_of(text, new=True), message))
    else:
        json_schema.parse(text)


def _code(loaded: Loaded) -> Iterator[Problem]:
    for stage in loaded.pipeline.stages:
        for position, step in enumerate(stage.transforms):
            if isinstance(step, PythonStep):
                more = ("python",) if stage.python else ("steps", position, "python")
                yield from _function(loaded, loaded.stage_loc(stage, *more), step.python)
            elif isinstance(step, StatefulStep):
                loc = loaded.stage_loc(stage, "steps", position, "stateful")
                yield from _named(loaded, loc, step.stateful.file, step.stateful.processor, "processor")
        for position, sink in enumerate(stage.to):
            if isinstance(sink, PythonSink):
                yield from _function(loaded, loaded.sink_loc(stage, position, "python"), sink.python)


def _function(loaded: Loaded, loc: Loc, function: PythonFunction) -> Iterator[Problem]:
    yield from _named(loaded, loc, function.file, function.function, "function")


def _named(loaded: Loaded, loc: Loc, file: str, name: str, field: str) -> Iterator[Problem]:
    missing = _missing(loaded, (*loc, "file"), file)
    yield from missing
    if missing:
        return
    path = loaded.path(file)
    try:
        with open(path, encoding="utf-8") as code:
            tree = ast.parse(code.read(FILE_BYTES_MAX), path)
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        yield loaded.problem((*loc, "file"), f"cannot read {path}: {why}")
        return
    except (SyntaxError, ValueError, RecursionError) as error:
        line = f" (line {error.lineno})" if isinstance(error, SyntaxError) and error.lineno else ""
        yield loaded.problem((*loc, "file"), f"{path} is not Python: {error.args[0] if error.args else error}{line}")
        return
    names = _defined(tree)
    if name not in names and "*" not in names:
        yield loaded.problem((*loc, field), f"{path} has no {field} '{name}'", nearest(name, sorted(names)))


def _defined(tree: ast.Module) -> set[str]:
    """Names that a module defines; `*` if it imports names that only running it would show."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names |= {alias.asname or alias.name.partition(".")[0] for alias in node.names}
    return names
