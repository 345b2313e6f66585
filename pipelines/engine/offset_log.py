"""Where the sources of a micro-batch end, from the offset log of its query's checkpoint.

Spark writes the log before the batch runs, so that a batch which runs again after a crash has the same ends. Only its
JVM interface reads it wherever the checkpoint lies.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from headwater.pipelines.spark import jvm

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headwater.pipelines.datasource.offsets import Offsets

# Thread-local property by which Spark tells what runs which query it runs for.
QUERY_ID_PROPERTY = "sql.streaming.queryId"


def query_id(session: SparkSession) -> str:
    """The id of the streaming query that calls `foreachBatch` on this thread: also that of its checkpoint."""
    found = session.sparkContext.getLocalProperty(QUERY_ID_PROPERTY)
    assert found, "not called from foreachBatch"
    return str(found)


def end_offsets(session: SparkSession, query: str, batch: int) -> tuple[Any, ...]:
    """The end offset of each source as JSON values, in the order of the sources; None for one without data yet.

    `session` is the one that started the query.
    """
    texts = jvm.logged_offsets(session, query, batch)
    return tuple(None if text is None else json.loads(text) for text in texts)


def topic_offsets(ends: Sequence[Any], topics: Iterable[str]) -> Offsets:
    """The next offset of each partition of these topics, of what `end_offsets` returned.

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
                found[key] = min(offset, found.get(key, offset))  # of a topic that is read twice, the slower one
    return found
