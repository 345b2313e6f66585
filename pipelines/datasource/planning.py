"""Plans the offset ranges of a read from its options and the cluster's metadata."""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final, TypeVar

from headwater.logtier.client.cluster import EARLIEST, LATEST, ClusterClient
from headwater.logtier.client.configs import topic_configs
from headwater.logtier.client.errors import RequestTimeoutError, UnknownTopicError
from headwater.logtier.client.leaders.divergence import UNKNOWN_DIVERGENCE, divergence
from headwater.pipelines.datasource.errors import OptionError, SourceError, report_loss
from headwater.pipelines.datasource.offsets import OffsetRange, Offsets, TopicPartition
from headwater.pipelines.datasource.options import ReadOptions
from headwater.pipelines.datasource.positions import OffsetSpec
from headwater.pipelines.datasource.time_bounds import APPEND_TIME_DISORDER_MS, first_later_ms, reaching

__all__ = ["Planner"]

# The cluster did not respond, or does not know a new topic yet.
PASSING: Final = (RequestTimeoutError, UnknownTopicError)

# The topic config with the origin of new records' timestamps, and its value for the broker's clock.
TIMESTAMP_TYPE: Final = "message.timestamp.type"
APPEND_TIME: Final = "LogAppendTime"

_T = TypeVar("_T")


class Planner:
    """Requests partitions and offsets from a cluster for one reader, with up to `fetchOffset.numRetries` attempts.

    With read_committed, the end of a partition is its last stable offset.
    """

    def __init__(self, cluster: ClusterClient, options: ReadOptions) -> None:
        self._cluster = cluster
        self._options = options
        self._epochs: dict[TopicPartition, int] = {}

    def _attempt(self, ask: Callable[[], _T], passing: tuple[type[Exception], ...] = PASSING) -> _T:
        """Retry after transient errors."""
        for _ in range(1, self._options.offset_attempts):
            try:
                return ask()
            except passing:
                self.pause()
        return ask()

    def pause(self) -> None:
        """Wait for the interval between two attempts."""
        time.sleep(self._options.offset_retry_ms / 1000)

    def partitions(self) -> list[TopicPartition]:
        """The subscription's partitions. Raises UnknownTopicError if a named topic is missing."""
        return self._attempt(self._partitions)

    def present_partitions(self) -> list[TopicPartition]:
        """The subscription's current partitions; missing topics have none."""
        return self._partitions(missing_is_empty=True)

    def _partitions(self, *, missing_is_empty: bool = False) -> list[TopicPartition]:
        subscription = self._options.subscription
        if subscription.pattern is not None:
            pattern = re.compile(subscription.pattern)
            found = {topic: parts for topic, parts in self._cluster.topics().items() if pattern.search(topic)}
            return sorted((topic, partition) for topic, parts in found.items() for partition in parts)
        assigned = subscription.assigned
        existing: dict[str, list[int]] = {}
        for topic in subscription.topics or dict.fromkeys(topic for topic, _ in assigned):
            try:
                existing[topic] = self._cluster.partitions(topic)
            except UnknownTopicError:
                if not missing_is_empty:
                    raise
        if not assigned:
            return sorted((topic, partition) for topic, parts in existing.items() for partition in parts)
        for topic, partition in assigned:
            if topic in existing and partition not in existing[topic]:
                raise OptionError(
                    f"option assign names {topic}-{partition}, but the topic has the partitions "
                    f"0 to {len(existing[topic]) - 1}"
                )
        return [key for key in assigned if key[0] in existing]

    def topic_id(self, topic: str) -> uuid.UUID | None:
        """The id of a topic at the last request of its partitions."""
        return self._cluster.topic_id(topic)

    def earliest(self, partitions: Iterable[TopicPartition]) -> Offsets:
        """The first offset of each partition."""
        return self._list(dict.fromkeys(partitions, EARLIEST))

    def latest(self, partitions: Iterable[TopicPartition]) -> Offsets:
        """The end offset of each partition, which is the next record's."""
        return self._list(dict.fromkeys(partitions, LATEST))

    def present_ends(self, partitions: Iterable[TopicPartition]) -> Offsets:
        """The end offsets. Raises UnknownTopicError and UnknownPartitionError without retries."""
        wanted = dict.fromkeys(partitions, LATEST)
        return self._attempt(lambda: self._listed(wanted), (RequestTimeoutError,))

    def _list(self, wanted: Offsets) -> Offsets:
        return self._attempt(lambda: self._listed(wanted)) if wanted else {}

    def _listed(self, wanted: Offsets) -> Offsets:
        found = self._cluster.listed_offsets(wanted)
        self._epochs.update({key: listed.leader_epoch for key, listed in found.items()})
        return {key: listed.offset for key, listed in found.items()}

    def leader_epochs(self) -> dict[TopicPartition, int]:
        """The leader epochs in which the partitions' offsets were last listed."""
        return dict(self._epochs)

    def truncated(self, positions: Offsets, epochs: Mapping[TopicPartition, int]) -> Offsets:
        """The offsets from which on records are lost that were there before the positions, in these leader epochs.

        Only partitions with such a loss. If the leader does not know the offset, it is the partition's first one.
        """
        ends = self._cluster.epoch_ends({key: epochs[key] for key in positions})
        found: Offsets = {}
        for key, end in ends.items():
            lost = divergence(end, positions[key], epochs[key], is_epoch_of_record=False)
            if lost is not None:
                found[key] = lost
        unknown = [key for key, offset in found.items() if offset == UNKNOWN_DIVERGENCE]
        return found | self.earliest(unknown)

    def at_or_after(self, partitions: Iterable[TopicPartition], timestamp_ms: int) -> Offsets:
        """The first offset at or after a time in each partition; the end offset if all records are earlier."""
        wanted = list(partitions)
        found = self._list(dict.fromkeys(wanted, timestamp_ms))
        return {**found, **self.latest(key for key in wanted if found[key] < 0)}

    def limited_in_time(self, ranges: Sequence[OffsetRange], high_ms: int) -> list[OffsetRange]:
        """Ranges for rows up to a timestamp: those of topics with a known disorder end early (see `time_bounds`).

        Without a stated disorder, these are the topics whose records have the brokers' times.
        """
        disorder_ms = self._options.timestamp_disorder_ms
        is_stated = disorder_ms is not None
        later_ms = first_later_ms(high_ms, APPEND_TIME_DISORDER_MS if disorder_ms is None else disorder_ms)
        limited = {part.topic for part in ranges} if is_stated else self._append_time_topics(ranges)
        if later_ms is None or not limited:
            return list(ranges)
        hints = self.at_or_after([(part.topic, part.partition) for part in ranges if part.topic in limited], later_ms)
        return [
            reaching(part, hints[part.topic, part.partition], later_ms, append_time_only=not is_stated)
            if part.topic in limited
            else part
            for part in ranges
        ]

    def _append_time_topics(self, ranges: Iterable[OffsetRange]) -> set[str]:
        """The topics whose newest records have the brokers' times; those of a forbidden config do not count."""
        topics = {part.topic for part in ranges}
        types = self._attempt(lambda: topic_configs(self._cluster, topics, TIMESTAMP_TYPE))
        return {topic for topic, value in types.items() if value == APPEND_TIME}

    def resolve(self, spec: OffsetSpec, partitions: Collection[TopicPartition], *, starting: bool) -> Offsets:
        """Resolve an option to offsets. Raises OptionError if it does not fit the partitions."""
        name = "starting" if starting else "ending"
        if spec.timestamp is not None:
            return self._by_timestamp(dict.fromkeys(partitions, spec.timestamp), f"{name}Timestamp", starting)
        if spec.timestamps:
            self._require_same(spec.timestamps, partitions, f"{name}OffsetsByTimestamp")
            return self._by_timestamp(spec.timestamps, f"{name}OffsetsByTimestamp", starting)
        if spec.offsets:
            self._require_same(spec.offsets, partitions, f"{name}Offsets")
            return {**spec.offsets, **self._list({key: at for key, at in spec.offsets.items() if at < 0})}
        assert spec.everywhere is not None
        return self._list(dict.fromkeys(partitions, spec.everywhere))

    def _by_timestamp(self, timestamps: Offsets, option: str, starting: bool) -> Offsets:
        found = self._list(timestamps)
        missing = sorted(key for key, offset in found.items() if offset < 0)
        if missing and starting and self._options.fail_without_timestamp_match:
            topic, partition = missing[0]
            raise SourceError(
                f"option {option}: {topic}-{partition} has no record at or after {timestamps[topic, partition]} ms; "
                "set startingOffsetsByTimestampStrategy=latest to start at its end"
            )
        return {**found, **self.latest(missing)}

    @staticmethod
    def _require_same(given: Offsets, partitions: Collection[TopicPartition], option: str) -> None:
        wanted = set(partitions)
        missing, unknown = sorted(wanted - given.keys()), sorted(given.keys() - wanted)
        if missing or unknown:
            problem = "does not name" if missing else "names"
            topic, partition = (missing or unknown)[0]
            raise OptionError(
                f"option {option} {problem} {topic}-{partition}: it must give exactly the {len(wanted)} partitions "
                "that are read (-2 for the earliest, -1 for the latest offset)"
            )

    def lost(self, what: str) -> None:
        """Report deleted records: an error, or with failOnDataLoss=false a warning."""
        report_loss(what, fail=self._options.fail_on_data_loss)

    def clamp_to_end(self, offsets: Offsets, option: str) -> Offsets:
        """An option's offsets, limited to their partitions' ends; a limited offset is reported as data loss."""
        end = self.latest(offsets)
        for (topic, partition), offset in sorted(offsets.items()):
            if offset > end[topic, partition]:
                for_reader = ", for a read_committed reader" if self._options.client.read_committed else ""
                self.lost(
                    f"option {option}: {topic}-{partition} ends at offset {end[topic, partition]}{for_reader}; "
                    f"{offset} lies beyond"
                )
        return {key: min(offset, end[key]) for key, offset in offsets.items()}

    def clamp_to_log(self, start: Offsets) -> Offsets:
        """Start offsets, raised to the log start offsets; a raised offset is reported as data loss."""
        first = self.earliest(start)
        clamped = dict(start)
        for (topic, partition), offset in start.items():
            if offset < first[topic, partition]:
                self.lost(
                    f"{topic}-{partition}: the offsets {offset} to {first[topic, partition] - 1} were deleted "
                    "(by retention) before they were read"
                )
                clamped[topic, partition] = first[topic, partition]
        return clamped
