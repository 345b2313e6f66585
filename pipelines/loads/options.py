"""Loads from options as a user gives them, or from a file whose settings the options override."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from headwater.pipelines.definition import Loaded
from headwater.pipelines.loads.errors import LoadError
from headwater.pipelines.loads.loads_file import LoadDeclaration, parse_loads
from headwater.pipelines.loads.offsets.intervals import interval_id, parse_interval
from headwater.pipelines.loads.offsets.planning import Wanted
from headwater.pipelines.loads.offsets.positions import parse_position
from headwater.pipelines.loads.partitions import parse_partitions
from headwater.pipelines.loads.request import LoadRequest, target_of
from headwater.pipelines.loads.target_format import TARGET_FORMATS
from headwater.pipelines.validation.declaring_file import named_text

__all__ = ["LoadOptions", "requests_of"]

COMMAND_LINE = "the command line"


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """The options; None for those that were not given."""

    topics: tuple[str, ...] = ()
    pattern: str | None = None
    file: str | None = None
    to: str | None = None
    format: str | None = None
    start: str | None = None
    until: str | None = None
    interval: str | None = None
    partition_by: tuple[str, ...] = ()
    timezone: str | None = None
    load_id: str = ""
    missing: bool = False
    replace: str = ""
    on_gap: str | None = None
    merge_schema: bool = False
    headers: bool = False
    wait_s: float = 0.0
    value: str | None = None
    schema: str | None = None
    registry: str | None = None
    assignments: Mapping[str, str] = field(default_factory=dict)


def requests_of(options: LoadOptions, existing: Collection[str]) -> tuple[list[LoadRequest], Loaded]:
    """The loads, and the declarations of their topics. Raises LoadError and PipelineError."""
    if options.interval is not None and (options.start or options.until or options.load_id or options.replace):
        raise LoadError("--interval says start, end and name; leave out --from, --until, --id and --replace")
    if options.replace and (options.start or options.until or options.load_id or options.missing):
        raise LoadError("--replace loads the range of that load: leave out --from, --until, --id and --missing")
    if options.format is not None and options.format not in TARGET_FORMATS:
        raise LoadError(f"{options.format[:60]!r} is no format of a target: use {', '.join(TARGET_FORMATS)}")
    if options.on_gap not in (None, "fail", "record"):
        raise LoadError(f"{str(options.on_gap)[:60]!r} is nothing to do about a gap: use fail or record")
    text, name, folder = _text(options)
    parsed, loaded = parse_loads(text, name, options.assignments, folder, os.environ, named_text(folder))
    found: list[LoadRequest] = []
    declarations: Sequence[LoadDeclaration] = parsed.loads
    try:
        for declaration in declarations:
            found += _requests(declaration, options, existing)
    except (LoadError, ValueError) as error:
        raise LoadError(str(error)) from None
    targets: dict[str, str] = {}
    for request in found:
        other = targets.setdefault(request.target, request.topic)
        if other != request.topic or sum(each.target == request.target for each in found) > 1:
            raise LoadError(f"{request.target} would be the target of two loads; name it with {{topic}}")
    return found, loaded


def _requests(declaration: Any, options: LoadOptions, existing: Collection[str]) -> list[LoadRequest]:

    topics = list(declaration.topics) or _matching(declaration.pattern, existing)
    if options.interval is not None:
        start, until = parse_interval(options.interval)
    else:
        start = parse_position(options.start or declaration.start)
        until = parse_position(options.until or declaration.until)
    wanted = Wanted(
        start,
        until,
        missing=options.missing or declaration.missing or options.interval is not None,
        record_gaps=(options.on_gap or declaration.on_gap) == "record",
        is_interval=options.interval is not None,
    )
    load_id = interval_id(start.time_ms, until.time_ms) if options.interval is not None else options.load_id
    partitions = parse_partitions(
        list(options.partition_by or declaration.partition_by), options.timezone or declaration.timezone
    )
    return [
        LoadRequest(
            topic,
            absolute(target_of(options.to or declaration.to, topic, len(topics))),
            options.format or declaration.format,
            wanted,
            partitions,
            load_id,
            options.replace,
            options.merge_schema or declaration.merge_schema,
            options.headers or declaration.headers,
            options.wait_s,
        )
        for topic in topics
    ]


def absolute(target: str) -> str:
    """A target as every process sees it: paths of this machine are absolute.

    >>> absolute("hdfs://nn/lake"), absolute("/lake/../x")
    ('hdfs://nn/lake', '/x')
    """
    return target if ":/" in target else os.path.abspath(target)


def _matching(pattern: str, existing: Collection[str]) -> list[str]:
    import re2

    try:
        wanted = re2.compile(pattern)
    except re2.error as error:
        raise LoadError(f"{pattern[:60]!r} is no regular expression: {error}") from None
    found = sorted(name for name in existing if not name.startswith("__") and wanted.fullmatch(name))
    if not found:
        raise LoadError(f"no topic matches {pattern[:60]!r}; `headwater topic list` shows them")
    return found


def _text(options: LoadOptions) -> tuple[str, str, str]:
    """The text of the declarations, their file's name, and the folder of the files that they name."""
    if options.file is not None:
        if options.topics or options.pattern is not None:
            raise LoadError("topics stand in the file; leave them out, or leave out -f")
        if options.value or options.schema or options.registry:
            raise LoadError("--value, --schema and --registry are for loads without -f; write them in the file")
        try:
            return named_text("")(options.file), options.file, os.path.dirname(os.path.abspath(options.file))
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
            raise LoadError(f"cannot read {options.file}: {why}") from None
    if bool(options.topics) == (options.pattern is not None):
        raise LoadError("name topics, or give --topics REGEX, or a file with -f")
    if options.to is None:
        raise LoadError("--to is missing; name the target: --to /lake/{topic}")
    return _declared(options), COMMAND_LINE, os.getcwd()


def _declared(options: LoadOptions) -> str:
    """The options as the text of a file."""
    import json

    entry: dict[str, Any] = {"to": options.to}
    entry |= {"topics": list(options.topics)} if options.topics else {"pattern": options.pattern}
    text: dict[str, Any] = {"loads": [entry]}
    if options.value is not None:
        if not options.topics:
            raise LoadError("--value needs the topics' names; name them, or declare their values in a file: -f")
        topic = {"value": options.value} | ({"schema": options.schema} if options.schema else {})
        text["topics"] = dict.fromkeys(options.topics, topic)
    elif options.schema is not None:
        raise LoadError("--schema needs --value; say the format: --value json")
    if options.registry is not None:
        text["registry"] = {"url": options.registry}
    return json.dumps(text).replace("${", "$${")
