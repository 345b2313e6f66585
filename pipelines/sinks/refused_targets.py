"""Targets to which no sink writes: archives, which hold each record of a topic once, and Delta tables as folders."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from headwater.pipelines.definition import DeltaSink, FilesSink
from headwater.pipelines.file_systems.file_system import FileSystemError
from headwater.pipelines.seam.marks import ID_PROPERTY, TOPIC_PROPERTY, refusal_of_others
from headwater.pipelines.spark import jvm, jvm_delta
from headwater.pipelines.spark.delta_folders import is_delta_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headwater.pipelines.definition import Loaded, Sink, Stage
    from headwater.pipelines.errors import Problem

__all__ = ["TargetRefusal", "refused_targets", "target_refusal"]


class TargetRefusal(NamedTuple):
    """Why a sink does not write to its target, and what to do; `field` of the sink names the target."""

    field: str
    reason: str
    hint: str


def target_refusal(spark: SparkSession, loaded: Loaded, sink: Sink) -> TargetRefusal | None:
    """Look at a sink's target as it is now. Raises Spark's errors, Py4J's and FileSystemError."""
    if isinstance(sink, DeltaSink):
        transaction = jvm_delta.start_delta_transaction(spark, path := jvm.hadoop_form(spark, loaded.path(sink.delta)))
        if jvm_delta.delta_property(transaction, ID_PROPERTY) is not None:
            topic = jvm_delta.delta_property(transaction, TOPIC_PROPERTY)
            return TargetRefusal("delta", refusal_of_others(path, topic), "name another table")
    if isinstance(sink, FilesSink) and is_delta_table(spark, path := loaded.path(sink.files)):
        reason = f"{path} is a Delta table, whose readers would not see the files, and whose VACUUM would delete them"
        return TargetRefusal("files", reason, "name another folder")
    return None


def refused_targets(spark: SparkSession, loaded: Loaded, stages: Iterable[Stage]) -> Iterator[Problem]:
    """The sinks whose targets are refused. A target that cannot be read now is looked at by its first batch."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    for stage in stages:
        for position, sink in enumerate(stage.to):
            try:
                refusal = target_refusal(spark, loaded, sink)
            except (PySparkException, Py4JError, FileSystemError):
                continue
            if refusal is not None:
                yield loaded.problem(loaded.sink_loc(stage, position, refusal.field), refusal.reason, refusal.hint)
