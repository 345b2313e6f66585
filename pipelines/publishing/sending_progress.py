"""How far the transaction of a publish is, asked beside Spark's job."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from headwater.logtier.client.cluster import LATEST, ClusterClient
from headwater.logtier.client.errors import ClientError
from headwater.pipelines.datasource.brokers import Brokers, connection_options
from headwater.pipelines.datasource.options import WriteOptions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["SendingProgress", "SendingSample"]


@dataclass(frozen=True, slots=True)
class SendingSample:
    """Records that have come to the topic, from others, too; and completed tasks of Spark's active stages."""

    sent: int
    tasks_done: int
    tasks: int


class SendingProgress:
    """Asks brokers and Spark for progress; for use by one thread. Call `close` at the end."""

    def __init__(self, spark: SparkSession, brokers: Brokers, topic: str) -> None:
        self._spark = spark
        self._topic = topic
        self._cluster = ClusterClient(WriteOptions.parse(connection_options(brokers)).client)
        self._before = self._end()
        self._last = 0

    def close(self) -> None:
        """Close the connections."""
        self._cluster.close()

    def sample(self) -> SendingSample:
        """The progress now; with the last known number of records while brokers are unreachable."""
        end = self._end()
        if end is not None and self._before is not None:
            self._last = max(0, end - self._before)
        tracker = self._spark.sparkContext.statusTracker()
        stages = [info for info in map(tracker.getStageInfo, tracker.getActiveStageIds()) if info is not None]
        return SendingSample(
            self._last, sum(info.numCompletedTasks for info in stages), sum(info.numTasks for info in stages)
        )

    def _end(self) -> int | None:
        try:
            partitions = [(self._topic, number) for number in self._cluster.partitions(self._topic)]
            return sum(self._cluster.list_offsets(dict.fromkeys(partitions, LATEST)).values())
        except ClientError:
            return None
