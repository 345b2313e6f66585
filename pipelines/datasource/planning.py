"""From options and the cluster's answers to the ranges of offsets that a read covers."""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Iterable

from logtier.client.cluster import EARLIEST, LATEST, ClusterClient
from logtier.client.errors import UnknownTopicError
from pipelines.datasource.errors import DataLossError, OptionError, SourceError
from pipelines.datasource.offsets import Offsets, TopicPartition
from pipelines.datasource.options import OffsetSpec, ReadOptions

__all__ = ["Planner"]

logger = logging.getLogger(__name__)


class Planner:
    """Asks a cluster for partitions and offsets on behalf of one reader."""

    def __init__(self, cluster: ClusterClient, options: ReadOptions) -> None:
        self._cluster = cluster
        self._options = options

    def partitions(self, *, missing_is_empty: bool = False) -> list[TopicPartition]:
        """The partitions that the subscription means at this moment.

        With `missing_is_empty`, a subscribed topic that does not exist (any more) has none.
        """
        subscription = self._options.subscription
        if subscription.pattern is not None:
            pattern = re.compile(subscription.pattern)
            found = {topic: parts for topic, parts in self._cluster.topics().items() if pattern.fullmatch(topic)}
            return sorted((topic, partition) for topic, parts in found.items() for partition in parts)
        if subscription.assigned:
            existing: dict[str, list[int]] = {}
            for topic, partition in subscription.assigned:
                if topic not in existing:
                    existing[topic] = self._cluster.partitions(topic)
                if partition not in existing[topic]:
                    raise OptionError(
                        f"option assign names {topic}-{partition}, but the topic has the partitions "
                        f"0 to {len(existing[topic]) - 1}"
                    )
            return list(subscription.assigned)
        found = {}
        for topic in subscription.topics:
            try:
                found[topic] = self._cluster.partitions(topic)
            except UnknownTopicError:
                if not missing_is_empty:
                    raise
        return sorted((topic, partition) for topic, parts in found.items() for partition in parts)

    def earliest(self, partitions: Iterable[TopicPartition]) -> Offsets:
        """The first offset of each partition."""
        return self._cluster.list_offsets(dict.fromkeys(partitions, EARLIEST))

    def latest(self, partitions: Iterable[TopicPartition]) -> Offsets:
        """The end offset of each partition: that of the next record."""
        return self._cluster.list_offsets(dict.fromkeys(partitions, LATEST))

    def at_or_after(self, partitions: Iterable[TopicPartition], timestamp_ms: int) -> Offsets:
        """The first offset of each partition that is not before a time; the end where all records are."""
        wanted = list(partitions)
        found = self._cluster.list_offsets(dict.fromkeys(wanted, timestamp_ms))
        missing = [key for key in wanted if found[key] < 0]
        return {**found, **(self.latest(missing) if missing else {})}

    def resolve(self, spec: OffsetSpec, partitions: Collection[TopicPartition], *, starting: bool) -> Offsets:
        """The offsets that an option means. Raises OptionError where it does not fit the partitions."""
        name = "starting" if starting else "ending"
        if spec.timestamp is not None:
            return self._by_timestamp(dict.fromkeys(partitions, spec.timestamp), f"{name}Timestamp", starting)
        if spec.timestamps:
            self._require_same(spec.timestamps, partitions, f"{name}OffsetsByTimestamp")
            return self._by_timestamp(spec.timestamps, f"{name}OffsetsByTimestamp", starting)
        if spec.offsets:
            self._require_same(spec.offsets, partitions, f"{name}Offsets")
            special = {key: offset for key, offset in spec.offsets.items() if offset < 0}
            return {**spec.offsets, **(self._cluster.list_offsets(special) if special else {})}
        assert spec.everywhere is not None
        return self._cluster.list_offsets(dict.fromkeys(partitions, spec.everywhere))

    def _by_timestamp(self, timestamps: Offsets, option: str, starting: bool) -> Offsets:
        found = self._cluster.list_offsets(timestamps)
        missing = sorted(key for key, offset in found.items() if offset < 0)
        if missing and starting and self._options.fail_without_timestamp_match:
            topic, partition = missing[0]
            raise SourceError(
                f"option {option}: {topic}-{partition} has no record at or after {timestamps[topic, partition]} ms; "
                "set startingOffsetsByTimestampStrategy=latest to start at its end"
            )
        return {**found, **(self.latest(missing) if missing else {})}

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
        """Reports that records are gone: an error, or with failOnDataLoss=false a warning."""
        if self._options.fail_on_data_loss:
            raise DataLossError(f"{what}; set failOnDataLoss=false to go on without them")
        logger.warning("%s; going on without them (failOnDataLoss=false)", what)

    def clamp_to_end(self, start: Offsets) -> Offsets:
        """Start offsets moved back to the ends of their partitions where they lie beyond, which is a data loss."""
        end = self.latest(start)
        for (topic, partition), offset in start.items():
            if offset > end[topic, partition]:
                self.lost(
                    f"option startingOffsets: {topic}-{partition} ends at offset {end[topic, partition]}, "
                    f"{offset} lies beyond"
                )
        return {key: min(offset, end[key]) for key, offset in start.items()}

    def clamp_to_log(self, start: Offsets) -> Offsets:
        """Start offsets moved up to what the log still has, which is a data loss to report."""
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
