"""The logs of a broker and their log folders."""

from collections import Counter
from collections.abc import Mapping

from headwater.logtier.log.folders.log_directory import LogDirectory
from headwater.logtier.log.log import Log
from headwater.logtier.protocol.topic_partition import TopicPartition


class PlacedLogs:
    """The logs by partition, each with its log folder.

    Invariants: a partition has at most one log; each log is in one folder, which counts it.
    """

    def __init__(self) -> None:
        self._logs: dict[TopicPartition, Log] = {}
        self._directory_of: dict[TopicPartition, LogDirectory] = {}
        self._counts: Counter[str] = Counter()

    @property
    def by_partition(self) -> Mapping[TopicPartition, Log]:
        """The logs by partition: a live view."""
        return self._logs

    def directory_of(self, topic_partition: TopicPartition) -> LogDirectory:
        """Return the folder of a log.

        Raises:
            KeyError: There is no log of the partition.
        """
        return self._directory_of[topic_partition]

    def count_in(self, directory: LogDirectory) -> int:
        """Number of logs in a folder."""
        return self._counts[directory.path]

    def in_directory(self, directory: LogDirectory) -> list[Log]:
        """Return the logs of a folder."""
        return [log for each, log in self._logs.items() if self._directory_of[each] is directory]

    def put(self, log: Log, directory: LogDirectory) -> None:
        """Set the log of a partition, replacing any previous log."""
        topic_partition = log.topic_partition
        before = self._directory_of.get(topic_partition)
        if before is not None:
            self._counts[before.path] -= 1
        self._logs[topic_partition] = log
        self._directory_of[topic_partition] = directory
        self._counts[directory.path] += 1

    def remove(self, log: Log) -> LogDirectory:
        """Remove a log; return its folder."""
        del self._logs[log.topic_partition]
        directory = self._directory_of.pop(log.topic_partition)
        self._counts[directory.path] -= 1
        return directory
