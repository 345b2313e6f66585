"""Undecodable records of tables' topics: each becomes a dead letter once, regardless of how often a table is read.

The first micro-batch that reads such records owns them. Its progress is committed as offsets of the stage's consumer
group for the table's topic, in the transaction of the dead letters. A repeated batch reads the same records again; a
later run begins at the last batch's end.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headwater.logtier.client.cluster import EARLIEST, LATEST, ClusterClient, TopicPartition
from headwater.logtier.client.group_offsets import committed_group_offsets
from headwater.pipelines import columns
from headwater.pipelines.datasource.brokers import Brokers, connection_options
from headwater.pipelines.datasource.errors import client_errors
from headwater.pipelines.datasource.offsets import Offsets, to_source_offset
from headwater.pipelines.datasource.options import ReadOptions
from headwater.pipelines.sources import decoding
from headwater.pipelines.sources import topic as topic_source

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from headwater.pipelines.sources.known_columns import KnownColumns

__all__ = ["TableDeadLetters", "TableRefusals", "unseen"]


@dataclass(frozen=True, slots=True)
class TableRefusals:
    """Undecodable records that a stage's tables omit, as frames with `columns.ORIGIN` and ERROR.

    `refused` and `headers` (of records with headers, with their topic, partition and offset) are by topic; `ends` are
    the end offsets of the read.
    """

    refused: dict[str, DataFrame] = field(default_factory=dict)
    headers: dict[str, DataFrame] = field(default_factory=dict)
    ends: Offsets = field(default_factory=dict)


def unseen(seen: Mapping[TopicPartition, int], first: Offsets, last: Offsets) -> dict[TopicPartition, tuple[int, int]]:
    """The offsets to read in each partition: from the end of the last read, or from the first remaining offset.

    >>> unseen(
    ...     {("t", 0): 5, ("t", 1): 7, ("t", 2): 9}, {("t", n): 6 for n in range(4)}, {("t", n): 8 for n in range(4)}
    ... )
    {('t', 0): (6, 8), ('t', 1): (7, 8), ('t', 2): (6, 8), ('t', 3): (6, 8)}
    """
    # An offset beyond the end belongs to a topic that was deleted and recreated since.
    return {
        key: (max(first[key], seen.get(key, 0)) if seen.get(key, 0) <= end else first[key], end)
        for key, end in last.items()
    }


class TableDeadLetters:
    """Reads the topics of one stage's tables. For use by one thread, after the stage's earlier runs are fenced."""

    def __init__(self, session: SparkSession, known: KnownColumns, bootstrap_servers: Brokers, group: str) -> None:
        """`group` is the stage's consumer group."""
        self._session = session
        self._known = known
        self._servers = bootstrap_servers
        self._group = group
        self._seen: Offsets | None = None

    def look(self, topics: Iterable[str]) -> TableRefusals:
        """Read the records since the last call. Its batch must be written before the next call. Raises SourceError."""
        found = TableRefusals()
        for topic in topics:
            ranges = self._unseen(topic)
            found.ends.update({key: end for key, (_, end) in ranges.items()})
            if all(start == end for start, end in ranges.values()):
                continue
            self._decode(topic, ranges, found)
        if self._seen is not None:
            self._seen |= found.ends
        return found

    def _unseen(self, topic: str) -> dict[TopicPartition, tuple[int, int]]:
        given = {"subscribe": topic, "kafka.isolation.level": topic_source.READ_COMMITTED}
        options = ReadOptions.parse(connection_options(self._servers) | given)
        with client_errors(), ClusterClient(options.client) as cluster:
            if self._seen is None:
                self._seen = committed_group_offsets(cluster, [self._group])[self._group]
            keys = [(topic, partition) for partition in cluster.partitions(topic)]
            first = cluster.list_offsets(dict.fromkeys(keys, EARLIEST))
            return unseen(self._seen, first, cluster.list_offsets(dict.fromkeys(keys, LATEST)))

    def _decode(self, topic: str, ranges: Mapping[TopicPartition, tuple[int, int]], found: TableRefusals) -> None:
        from pyspark.sql import functions as f

        start = json.dumps(to_source_offset({key: first for key, (first, _) in ranges.items()}))
        end = json.dumps(to_source_offset({key: last for key, (_, last) in ranges.items()}))
        records = topic_source.batch_between(
            self._session,
            self._servers,
            topic,
            start,
            end,
            headers=decoding.topic_needs_headers(self._known, topic),
            json_fields=decoding.topic_json_fields(self._known, topic),
        )
        # The other records are no rows of the table, regardless of their content.
        rows = records.where(f.col("key").isNotNull() & f.col("value").isNotNull())
        decoded = decoding.decode_topic(self._known, rows, topic)
        found.refused[topic] = decoded.where(f.col(columns.ERROR).isNotNull())
        whole = topic_source.batch_between(self._session, self._servers, topic, start, end, headers=True)
        place = {"topic": columns.TOPIC, "partition": columns.PARTITION, "offset": columns.OFFSET}
        named = [f.col(name).alias(alias) for name, alias in place.items()]
        found.headers[topic] = whole.where(f.col("headers").isNotNull()).select(*named, "headers")
