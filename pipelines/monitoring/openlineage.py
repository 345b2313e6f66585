"""OpenLineage run events of a run's stages: each stage's input and output data sets, and its outcome. Pure.

An event follows version 2-0-2 of the specification's schema: `eventType`, `eventTime`, `producer`, `schemaURL`, a run
with an id that all events of a run share, a job, inputs and outputs. Topics are data sets in the namespace
`kafka://HOST:PORT` (of the first bootstrap server); tables and files are data sets in the namespace of their file
system.
"""

from __future__ import annotations

import datetime as dt
import posixpath
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from headwater.pipelines.definition import (
    JdbcSink,
    JdbcSource,
    Loaded,
    Sink,
    Source,
    Stage,
)
from headwater.pipelines.definition.graph import side_topics

__all__ = ["Dataset", "StageLineage", "event", "stage_lineage"]

SCHEMA_URL: Final = "https://openlineage.io/spec/2-0-2/OpenLineage.json#/$defs/RunEvent"
PRODUCER: Final = "urn:headwater:pipelines"
_FACETS: Final = "https://openlineage.io/spec/facets"
_SCHEMA_FACET: Final = f"{_FACETS}/1-1-1/SchemaDatasetFacet.json#/$defs/SchemaDatasetFacet"
_ERROR_FACET: Final = f"{_FACETS}/1-0-1/ErrorMessageRunFacet.json#/$defs/ErrorMessageRunFacet"
_JOB_TYPE_FACET: Final = f"{_FACETS}/2-0-3/JobTypeJobFacet.json#/$defs/JobTypeJobFacet"
_OUTPUT_FACET: Final = (
    f"{_FACETS}/1-0-2/OutputStatisticsOutputDatasetFacet.json#/$defs/OutputStatisticsOutputDatasetFacet"
)
ERROR_CHARACTERS_MAX: Final = 2_000

Columns = Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Dataset:
    """A data set that a stage reads or writes; `columns` are names and types, empty if unknown."""

    namespace: str
    name: str
    columns: tuple[tuple[str, str], ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return the data set's JSON object in an event."""
        facets: dict[str, Any] = {}
        if self.columns:
            facets["schema"] = _facet(
                _SCHEMA_FACET, fields=[{"name": name, "type": kind} for name, kind in self.columns]
            )
        return {"namespace": self.namespace, "name": self.name, "facets": facets}


@dataclass(frozen=True, slots=True)
class StageLineage:
    """A stage as an OpenLineage job with its data sets.

    `counted` is the position of the output whose number of rows is known: the first that receives all rows that the
    stage writes; None if each has a condition.
    """

    namespace: str
    name: str
    is_streaming: bool
    inputs: tuple[Dataset, ...] = ()
    outputs: tuple[Dataset, ...] = ()
    counted: int | None = None


def stage_lineage(
    loaded: Loaded,
    stage: Stage,
    bootstrap_servers: str,
    columns: Mapping[tuple[str, str], Columns],
    *,
    is_streaming: bool,
) -> StageLineage:
    """Return a stage's data sets; `columns` by kind and place: `("topic", name)`, `("delta", path)`, ..."""
    namespace = f"kafka://{bootstrap_servers.partition(',')[0].strip()}"

    def placed(found: tuple[str, str, str] | None) -> Dataset | None:
        if found is None:
            return None
        kind, space, name = found
        return Dataset(space, name, tuple(columns.get((kind, name), ())))

    inputs = [placed(_placed(loaded, source, namespace)) for source in stage.inputs]
    written = [(sink, output) for sink in stage.to if (output := placed(_placed(loaded, sink, namespace))) is not None]
    letters = [Dataset(namespace, topic) for topic in side_topics(loaded.pipeline, stage)]
    return StageLineage(
        namespace=f"headwater://{loaded.pipeline.pipeline}",
        name=stage.name,
        is_streaming=is_streaming,
        inputs=tuple(each for each in inputs if each is not None),
        outputs=(*(output for _, output in written), *letters),
        counted=next((position for position, (sink, _) in enumerate(written) if sink.when is None), None),
    )


def event(
    lineage: StageLineage,
    event_type: str,
    run_id: str,
    at_ms: int,
    *,
    error: str = "",
    rows_written: int | None = None,
) -> dict[str, Any]:
    """Return a run event: `event_type` is START, RUNNING, COMPLETE, FAIL or ABORT.

    >>> made = event(StageLineage("headwater://flights", "clean", True), "START", "0" * 8, 0)
    >>> made["eventTime"], made["job"]["name"]
    ('1970-01-01T00:00:00.000Z', 'clean')
    """
    run: dict[str, Any] = {"runId": run_id, "facets": {}}
    if error:
        message = error[:ERROR_CHARACTERS_MAX]
        run["facets"]["errorMessage"] = _facet(_ERROR_FACET, message=message, programmingLanguage="PYTHON")
    kind = "STREAMING" if lineage.is_streaming else "BATCH"
    outputs = [each.as_dict() for each in lineage.outputs]
    if rows_written is not None and lineage.counted is not None:
        outputs[lineage.counted]["outputFacets"] = {"outputStatistics": _facet(_OUTPUT_FACET, rowCount=rows_written)}
    return {
        "eventType": event_type,
        "eventTime": _moment(at_ms),
        "producer": PRODUCER,
        "schemaURL": SCHEMA_URL,
        "run": run,
        "job": {
            "namespace": lineage.namespace,
            "name": lineage.name,
            "facets": {
                "jobType": _facet(_JOB_TYPE_FACET, processingType=kind, integration="HEADWATER", jobType="STAGE")
            },
        },
        "inputs": [each.as_dict() for each in lineage.inputs],
        "outputs": outputs,
    }


def _facet(schema_url: str, **fields: Any) -> dict[str, Any]:
    return {"_producer": PRODUCER, "_schemaURL": schema_url, **fields}


def _moment(at_ms: int) -> str:
    return dt.datetime.fromtimestamp(at_ms / 1000, dt.UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _placed(loaded: Loaded, part: Source | Sink, topics: str) -> tuple[str, str, str] | None:
    """Return kind, namespace and name of the place that an input reads or a sink writes; None without a place."""
    if part.place is None:
        return None
    kind, name = part.place
    if kind == "topic":
        return kind, topics, name
    if isinstance(part, JdbcSource | JdbcSink):
        return (kind, *_database(str(part.jdbc), part.table))
    return (kind, *file_place(loaded.path(name)))


def file_place(path: str) -> tuple[str, str]:
    """Return namespace and name of a file or a folder.

    >>> file_place("/lake/flights"), file_place("s3a://bucket/lake/flights"), file_place("hdfs://nn:8020/lake/")
    (('file', '/lake/flights'), ('s3a://bucket', 'lake/flights'), ('hdfs://nn:8020', '/lake'))
    """
    found = re.match(r"^([a-z][a-z0-9+.-]*):/+([^/]*)(/.*)?$", path)
    if found is None or found[1] == "file":
        return "file", posixpath.normpath(path.removeprefix("file://").removeprefix("file:"))
    scheme, authority, rest = found[1], found[2], posixpath.normpath(found[3] or "/")
    name = rest.removeprefix("/") if scheme.startswith(("s3", "gs", "abfs", "wasb")) else rest
    return f"{scheme}://{authority}", name or "/"


def _database(url: str, table: str) -> tuple[str, str]:
    """Return namespace and name of a database's table, without user, password and options, which may be secret.

    >>> _database("jdbc:postgresql://u:p@db:5432/shop?password=x", "orders")
    ('postgresql://db:5432', 'shop.orders')
    """
    found = re.match(r"^jdbc:([a-z0-9]+):(?://(?:[^@/]*@)?([^/?;]*))?/?([^?;]*)", url)
    if found is None:
        return "jdbc", table
    database = found[3].strip("/")
    return f"{found[1]}://{found[2] or 'localhost'}", f"{database}.{table}" if database else table
