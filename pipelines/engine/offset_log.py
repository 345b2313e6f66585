"""End offsets of a micro-batch's sources, from the offset log of the query's checkpoint.

Spark writes the log before the batch runs, so a batch repeated after a crash has the same end offsets. Only Spark's JVM
interface reads the log on any file system.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from headwater.pipelines.spark import jvm

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headwater.pipelines.datasource.offsets import Offsets

# Spark's thread-local property that holds the id of the running query.
QUERY_ID_PROPERTY = "sql.streaming.queryId"


def query_id(session: SparkSession) -> str:
    """Return the id of the streaming query that calls `foreachBatch` on this thread: its checkpoint's id."""
    found = session.sparkContext.getLocalProperty(QUERY_ID_PROPERTY)
    assert found, "not called from foreachBatch"
    return str(found)


def end_offsets(session: SparkSession, query: str, batch: int) -> tuple[Any, ...]:
    """Return the end offset of each source as a JSON value, in the sources' order; None for a source without data yet.

    `session` is the session that started the query.
    """
    texts = jvm.logged_offsets(session, query, batch)
    return tuple(None if text is None else json.loads(text) for text in texts)


def topic_offsets(ends: Sequence[Any], topics: Iterable[str]) -> Offsets:
    """Return the next offset of each partition of these topics, from the result of `end_offsets`.

    >>> topic_offsets([{"flights": {"0": 5, "1": 7}}, {"reservoirId": "x"}, None, 17], ["flights"])
    {('flights', 0): 5, ('flights', 1): 7}
    """
    found: Offsets = {}
    wanted = set(topics)
    for end in ends:
        if not isinstance(end, dict) or not end or not wanted.issuperset(end):
            continue
        for topic, partitions in end.items():
            for partition, offset in partitions.items():
                key = (topic, int(partition))
                found[key] = min(offset, found.get(key, offset))  # for a topic that is read twice, the lower offset
    return found
