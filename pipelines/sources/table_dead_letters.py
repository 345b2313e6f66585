"""Records of tables' topics that cannot be decoded: each becomes a dead letter once, however often a table is read.

The micro-batch that first sees such records owns them: what it has looked at is committed with it, as offsets of the
stage's consumer group for the table's topic, in the transaction that holds the letters. A batch that runs again looks
at the same records again, a later run begins where the last batch ended.
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
    """Records that a stage's tables leave out since they cannot be decoded, as frames with `columns.ORIGIN` and ERROR.

    `refused` and `headers` (those of the records that have some, by their places) are by topic; `ends` is up to where
    the topics were looked at.
    """

    refused: dict[str, DataFrame] = field(default_factory=dict)
    headers: dict[str, DataFrame] = field(default_factory=dict)
    ends: Offsets = field(default_factory=dict)


def unseen(seen: Mapping[TopicPartition, int], first: Offsets, last: Offsets) -> dict[TopicPartition, tuple[int, int]]:
    """What is to be looked at of each partition: from where the last look ended, as far as that is still there.

    >>> unseen(
    ...     {("t", 0): 5, ("t", 1): 7, ("t", 2): 9}, {("t", n): 6 for n in range(4)}, {("t", n): 8 for n in range(4)}
    ... )
    {('t', 0): (6, 8), ('t', 1): (7, 8), ('t', 2): (6, 8), ('t', 3): (6, 8)}
    """
    # An offset beyond the end is of a topic that was deleted and made anew since.
    return {
        key: (max(first[key], seen.get(key, 0)) if seen.get(key, 0) <= end else first[key], end)
        for key, end in last.items()
    }


class TableDeadLetters:
    """Looks at the topics of one stage's tables. One thread uses it, after the stage's earlier runs are fenced off."""

    def __init__(self, session: SparkSession, known: KnownColumns, bootstrap_servers: Brokers, group: str) -> None:
        """`group` is the consumer group that the stage commits to."""
        self._session = session
        self._known = known
        self._servers = bootstrap_servers
        self._group = group
        self._seen: Offsets | None = None

    def look(self, topics: Iterable[str]) -> TableRefusals:
        """What came to topics since the last look, whose batch must be written before the next. Raises SourceError."""
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
        # The others are no rows of the table, whatever they hold.
        rows = records.where(f.col("key").isNotNull() & f.col("value").isNotNull())
        decoded = decoding.decode_topic(self._known, rows, topic)
        found.refused[topic] = decoded.where(f.col(columns.ERROR).isNotNull())
        whole = topic_source.batch_between(self._session, self._servers, topic, start, end, headers=True)
        place = {"topic": columns.TOPIC, "partition": columns.PARTITION, "offset": columns.OFFSET}
        named = [f.col(name).alias(alias) for name, alias in place.items()]
        found.headers[topic] = whole.where(f.col("headers").isNotNull()).select(*named, "headers")
