"""Tables that are no targets of pipelines: those of archives, which hold each record of a topic once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

from headwater.pipelines.definition import DeltaSink
from headwater.pipelines.seam.marks import ID_PROPERTY, TOPIC_PROPERTY, refusal_of_others
from headwater.pipelines.spark import jvm, jvm_delta

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headwater.pipelines.definition import Loaded, Stage
    from headwater.pipelines.errors import Problem

__all__ = ["OTHER_TABLE", "archive_refusal", "archives_as_sinks"]

OTHER_TABLE: Final = "name another table"


def archive_refusal(spark: SparkSession, path: str) -> str:
    """Why the table at `path`, in Hadoop's form, is no sink: it is an archive's; '' for others, and without a table.

    Raises Spark's errors and Py4J's.
    """
    transaction = jvm_delta.start_delta_transaction(spark, path)
    if jvm_delta.delta_property(transaction, ID_PROPERTY) is None:
        return ""
    return refusal_of_others(path, jvm_delta.delta_property(transaction, TOPIC_PROPERTY))


def archives_as_sinks(spark: SparkSession, loaded: Loaded, stages: Iterable[Stage]) -> Iterator[Problem]:
    """The sinks whose tables are archives'. A table that cannot be read now is looked at by its first batch."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    for stage in stages:
        for position, sink in enumerate(stage.to):
            if not isinstance(sink, DeltaSink):
                continue
            try:
                reason = archive_refusal(spark, jvm.hadoop_form(spark, loaded.path(sink.delta)))
            except (PySparkException, Py4JError):
                continue
            if reason:
                yield loaded.problem(loaded.sink_loc(stage, position, "delta"), reason, OTHER_TABLE)
