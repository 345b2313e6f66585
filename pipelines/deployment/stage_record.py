"""The record of a deployed stage in the state folder: the stage without layout, comments and defaults.

Equal records mean that the checkpoint fits. `headwater.pipelines.deployment.changes` determines the effect of a
difference. A record holds no secret: addresses are redacted as in plans, and a hash of its name identifies a database.
Pure.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from headwater.pipelines.definition import (
    DeduplicateStep,
    FilesSource,
    FilesTable,
    Loaded,
    Pipeline,
    PythonFunction,
    PythonSink,
    PythonStep,
    SqlStep,
    Stage,
    StatefulStep,
    Step,
    TopicTable,
    TopicWatermark,
    Watermark,
    WatermarkStep,
)
from headwater.pipelines.definition.file_formats import is_columns
from headwater.pipelines.definition.graph import input_views, tables_used
from headwater.pipelines.definition.topics import FROM_REGISTRY
from headwater.pipelines.deployment.recorded_databases import with_databases
from headwater.pipelines.sql_text.shape import SqlShape, sql_shape, tokens_of

__all__ = [
    "SHUFFLE_PARTITIONS",
    "RecordError",
    "StageRecord",
    "code_files",
    "imports_of",
    "record_of",
    "schema_files",
    "topics_read_by",
]

SHUFFLE_PARTITIONS: Final = "spark.sql.shuffle.partitions"
_FORMAT_VERSION: Final = 1
#: Options of a topic's declaration that concern its storage and its queries, not its records' meaning.
_STORED: Final = ("partitions", "replication_factor", "configs", "timestamp_disorder")


class RecordError(Exception):
    """A record that a later release or another program wrote."""


@dataclass(frozen=True, slots=True)
class StageRecord:
    """A stage as it was deployed.

    `operators` are the stateful operators that the file shows; `is_stateful` is whether the checkpoint has state, None
    without a checkpoint. `code` maps the paths of the stage's Python files, as written in the file, to their hashes;
    `reads` are the inputs' views in the order in which its SQL names them. `declared` holds the other declarations that
    rows depend on, by `topic NAME`, `table NAME`, `schema PATH`; `ids` are the ids of the cluster and of topics. None
    in a field means an earlier release's record: the value is unknown.
    """

    inputs: tuple[dict[str, Any], ...]
    reads: tuple[str, ...]
    steps: tuple[dict[str, Any], ...]
    operators: tuple[dict[str, Any], ...]
    watermarks: tuple[dict[str, str], ...]
    mode: str
    sinks: tuple[dict[str, Any], ...]
    expect: tuple[dict[str, str], ...] = ()
    trigger: str | None = None
    code: Mapping[str, str] = field(default_factory=dict)
    shuffle_partitions: str | None = None
    is_stateful: bool | None = None
    declared: Mapping[str, Any] | None = None
    ids: Mapping[str, str] | None = None

    def encode(self) -> str:
        """The content of the file `deployed.json`."""
        return json.dumps({"version": _FORMAT_VERSION, **asdict(self)}, indent=1, ensure_ascii=False) + "\n"

    @staticmethod
    def decode(text: str) -> StageRecord:
        """The inverse of `encode`. Raises RecordError."""
        try:
            values = json.loads(text)
            if values.pop("version") != _FORMAT_VERSION:
                raise ValueError("another version of the format")
            tuples = ("inputs", "reads", "steps", "operators", "watermarks", "sinks", "expect")
            return StageRecord(**with_databases(values | {name: tuple(values[name]) for name in tuples}))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise RecordError(f"it cannot be read ({error}); a later release may have written it") from None


def record_of(
    loaded: Loaded,
    stage: Stage,
    code: Mapping[str, str],
    shuffle_partitions: str | None = None,
    schemas: Mapping[str, str] | None = None,
) -> StageRecord:
    """The record of a stage. `code` and `schemas` are hashes of Python and schema files by their paths in the file."""
    shapes = [_sql(stage, position) for position in range(len(stage.transforms))]
    steps = tuple(_step(step, shape, code) for step, shape in zip(stage.transforms, shapes, strict=True))
    operators: list[dict[str, Any]] = []
    for position, (step, shape) in enumerate(zip(stage.transforms, shapes, strict=True)):
        if position < stage.stream_steps:
            operators += [{**each, "step": position} for each in _operators(step, shape)]
    first = shapes[0] if shapes else None
    names = tuple(source.name.lower() for source in stage.inputs)
    return StageRecord(
        inputs=tuple(source.record(loaded.path) for source in stage.inputs),
        reads=first.reads if first is not None and first.is_known and first.reads else names,
        steps=steps,
        operators=tuple(operators),
        watermarks=_watermarks(stage),
        mode=stage.mode,
        sinks=tuple(sink.record(loaded.path) for sink in stage.to),
        expect=tuple(e.model_dump() for e in stage.expect),
        trigger=stage.trigger,
        code={name: code[name] for path in code_files(stage) for name in (path, imports_of(path)) if name in code},
        shuffle_partitions=shuffle_partitions,
        declared=_declared(loaded, stage, schemas or {}),
    )


def imports_of(path: str) -> str:
    """Key, among the hashes of code, of the modules that a Python file imports."""
    return f"imports of {path}"


def topics_read_by(pipeline: Pipeline, stage: Stage) -> tuple[str, ...]:
    """The topics that a stage reads, as streams and as tables."""
    found = [source.topic for source in stage.topic_inputs]
    tables = [pipeline.tables[name] for name in tables_used(pipeline, stage)]
    return tuple(dict.fromkeys([*found, *(table.topic for table in tables if isinstance(table, TopicTable))]))


def _declared(loaded: Loaded, stage: Stage, schemas: Mapping[str, str]) -> dict[str, Any]:
    """The declarations of topics and tables in the file, with the hashes of their schemas."""
    pipeline = loaded.pipeline
    found: dict[str, Any] = {}
    for name in tables_used(pipeline, stage):
        found[f"table {name.lower()}"] = pipeline.tables[name].record(loaded.path)
    for topic in topics_read_by(pipeline, stage):
        if topic in pipeline.topics:
            found[f"topic {topic}"] = pipeline.topics[topic].model_dump(mode="json", exclude=set(_STORED))
    found |= {f"schema {path}": schemas[path] for path in schema_files(loaded, stage) if path in schemas}
    return found


def schema_files(loaded: Loaded, stage: Stage) -> tuple[str, ...]:
    """The schema files of a stage's inputs and tables, as the pipeline names them."""
    pipeline = loaded.pipeline
    tables = [pipeline.tables[name] for name in tables_used(pipeline, stage)]
    found: list[str | None] = []
    for topic in topics_read_by(pipeline, stage):
        declared = pipeline.topics.get(topic)
        if declared is not None:
            found += [declared.schema_file, None if declared.key_schema == FROM_REGISTRY else declared.key_schema]
            found += [event.schema_file for event in declared.events.values()]
    sources: list[object] = [*stage.inputs, *tables]
    found += [each.schema_source for each in sources if isinstance(each, FilesSource | FilesTable)]
    return tuple(dict.fromkeys(path for path in found if path is not None and not is_columns(path)))


def code_files(stage: Stage) -> tuple[str, ...]:
    """The Python files that a stage names, as written in the file."""
    found = [step.python.file for step in stage.transforms if isinstance(step, PythonStep)]
    found += [step.stateful.file for step in stage.transforms if isinstance(step, StatefulStep)]
    found += [sink.python.file for sink in stage.to if isinstance(sink, PythonSink)]
    return tuple(dict.fromkeys(found))


# -- inputs --------------------------------------------------------------------------------------------------------


def _watermarks(stage: Stage) -> tuple[dict[str, str], ...]:
    found = [(source.name, source.watermark) for source in stage.inputs if source.watermark is not None]
    found += [("steps", step.watermark) for step in stage.transforms if isinstance(step, WatermarkStep)]
    return tuple(
        {"of": name, "column": mark.column.lower(), "delay": mark.delay, **_late(mark)} for name, mark in found
    )


def _late(mark: Watermark) -> dict[str, str]:
    """The topic for late records; it has no effect on the state."""
    return {"late": mark.late} if isinstance(mark, TopicWatermark) and mark.late is not None else {}


# -- steps ---------------------------------------------------------------------------------------------------------


def _sql(stage: Stage, position: int) -> SqlShape | None:
    step = stage.transforms[position]
    return sql_shape(step.sql, input_views(stage, position)) if isinstance(step, SqlStep) else None


def _step(step: Step, shape: SqlShape | None, code: Mapping[str, str]) -> dict[str, Any]:
    if shape is not None:
        outputs = dict(shape.outputs) if shape.is_known else None
        assert isinstance(step, SqlStep)
        source = tokens_of(step.sql)
        return {
            "kind": "sql", "text": shape.text, "outputs": outputs, "of_batch": step.is_of_batch, "source": source
        }  # fmt: skip
    if isinstance(step, PythonStep):
        return {"kind": "python", **_function(step.python, code), "of_batch": step.is_of_batch}
    if isinstance(step, WatermarkStep):
        return {"kind": "watermark", **step.watermark.model_dump()}
    if isinstance(step, DeduplicateStep):
        return {"kind": "deduplicate", **step.deduplicate.model_dump(mode="json")}
    assert isinstance(step, StatefulStep)
    return {"kind": "stateful", **step.stateful.model_dump(mode="json"), "code": code.get(step.stateful.file)}


def _function(function: PythonFunction, code: Mapping[str, str]) -> dict[str, Any]:
    return {"file": function.file, "function": function.function, "code": code.get(function.file)}


def _operators(step: Step, shape: SqlShape | None) -> list[dict[str, Any]]:
    """The stateful operators that a step shows; `uses` are the columns that an operator reads."""
    if shape is not None:
        return [{**each, "uses": sorted(shape.uses)} for each in shape.operators]
    if isinstance(step, DeduplicateStep):
        same = step.deduplicate
        column = same.column.lower() if same.within is not None else None
        by = sorted(name.lower() for name in same.by)
        return [
            {"kind": "deduplicate", "by": by, "column": column, "uses": sorted({*by, *([column] if column else [])})}
        ]
    if isinstance(step, StatefulStep):
        state = step.stateful
        by = [name.lower() for name in state.by]
        output = " ".join(state.output.lower().replace(",", " , ").split())
        return [
            {"kind": "stateful", "by": by, "output": output, "form": state.form, "time": state.time, "uses": sorted(by)}
        ]
    return []
