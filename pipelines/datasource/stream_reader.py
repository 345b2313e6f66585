"""The stream reader: micro-batches between offsets, with admission control and available-now."""

from __future__ import annotations

import dataclasses
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from headwater.logtier.client.cluster import EARLIEST, LATEST, ClusterClient
from headwater.logtier.client.errors import UnknownPartitionError, UnknownTopicError
from headwater.logtier.client.leaders.metadata import NO_EPOCH
from headwater.logtier.client.waiter import DataWaiter
from headwater.pipelines.datasource.errors import OptionError, SourceError, client_errors
from headwater.pipelines.datasource.history import (
    ARCHIVED,
    History,
    HistoryPartition,
    LogPart,
    read_history,
    with_no_history,
)
from headwater.pipelines.datasource.offsets import (
    OffsetRange,
    Offsets,
    TopicPartition,
    from_source_offset,
    limit_by_backlog,
    to_source_offset,
)
from headwater.pipelines.datasource.options import ReadOptions
from headwater.pipelines.datasource.planning import Planner
from headwater.pipelines.datasource.positions import OffsetSpec
from headwater.pipelines.datasource.reading import RangePartition, plan_tasks, read_range

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

__all__ = ["StreamReader"]

# An idle query polls every 10 ms (spark.sql.streaming.pollingDelay). The reader blocks until data arrives, but no
# longer than this, because stopping a query waits for the call.
IDLE_WAIT_MS = 1_000
# Interval of checks for new partitions of the subscribed topics while idle; with data, each call checks.
DISCOVERY_INTERVAL_S = 1.0
# Looks at an archive's table that grows while retention follows it.
TABLE_LOOKS_MAX = 4


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans micro-batches. Lives in Spark's planner process for the life of the query; its copies in tasks only `read`.

    Source offsets have the form of Spark's Kafka source: {"topic": {"0": next offset}}. With read_committed no
    micro-batch extends beyond the last stable offset, so that no micro-batch waits for an open transaction.

    With an archive's table, what lies below its offsets at the start of the run is read from the table.
    """

    def __init__(self, options: ReadOptions, schema: StructType | None = None) -> None:
        """`schema` has the table's columns; only a stream with an archive's table needs it."""
        if options.ending is not None:
            raise OptionError("options endingOffsets, endingOffsetsByTimestamp, endingTimestamp: a stream has no end")
        self._options = options
        self._schema = schema
        path = options.archive_table
        self._history = None if path is None else History(path, options.subscription.topics[0])
        self._cluster: ClusterClient | None = None
        self._waiter: DataWaiter | None = None
        self._partitions: list[TopicPartition] = []
        self._topic_ids: dict[str, uuid.UUID] = {}
        self._discovered_s = float("-inf")
        self._triggered_s = float("-inf")
        self._target: Offsets | None = None
        self._latest: Offsets | None = None
        self._is_idle = False
        # The leader epochs in which the log reached the end offsets, the target, and the start of the next micro-batch.
        self._latest_epochs: dict[TopicPartition, int] = {}
        self._target_epochs: dict[TopicPartition, int] = {}
        self._start_epochs: dict[TopicPartition, int] = {}

    def _planner(self) -> Planner:
        if self._cluster is None:
            self._cluster = ClusterClient(self._options.client)
            self._waiter = DataWaiter(self._cluster)
        return Planner(self._cluster, self._options)

    # -- what the cluster has ----------------------------------------------------------------------------------------

    def _discover(self) -> None:
        """Check for new and deleted partitions."""
        planner = self._planner()
        # A topic deleted during the stream is a data loss to report, not an invalid name.
        self._partitions = planner.partitions() if self._latest is None else planner.present_partitions()
        self._discovered_s = time.monotonic()
        for topic, _ in self._partitions:
            found = planner.topic_id(topic)
            if found is not None:
                self._topic_ids.setdefault(topic, found)

    def _ends(self, known: Offsets | None = None) -> Offsets:
        """The current end offsets of all partitions, including new ones; `known` are the previous end offsets."""
        if time.monotonic() - self._discovered_s > DISCOVERY_INTERVAL_S:
            self._discover()
        for _ in range(self._options.offset_attempts + 1):
            before = self._partitions
            planner = self._planner()
            try:
                self._latest = planner.present_ends(before) if before else {}
                self._latest_epochs = planner.leader_epochs()
            except (UnknownTopicError, UnknownPartitionError):
                self._discover()
                continue
            if self._latest == known:
                return self._latest
            # Checked after the ends were read: if the topics' ids are unchanged, the ends belong to these topics.
            self._discover()
            if self._partitions == before:
                return self._latest
        raise SourceError("the subscribed topics come and go: their end offsets cannot be told")

    def _reachable(self, known: Offsets) -> Offsets:
        """The target of the next micro-batches; deleted or truncated partitions are a data loss."""
        found = self._ends(known)
        changed = self._take_made_anew(known) or self._take_truncated(known)
        if changed:
            return changed
        end = dict(found if self._target is None else self._target)
        for topic, partition in sorted(known.keys() - end.keys()):
            offset = known[topic, partition]
            self._planner().lost(f"{topic}-{partition} is gone since offset {offset}; its further records are lost")
        shrunk = self._shrunk(known, end)
        for _ in range(1, self._options.offset_attempts if shrunk and self._target is None else 1):
            # A newly elected leader may not know its high watermark yet.
            self._planner().pause()
            end = dict(self._ends(known))
            shrunk = self._shrunk(known, end)
            if not shrunk:
                break
        for topic, partition in shrunk:
            self._planner().lost(
                f"{topic}-{partition} ends at offset {end[topic, partition]}, but {known[topic, partition]} was "
                "reached before: the topic was made anew, and records of it are lost"
            )
        return end

    @staticmethod
    def _shrunk(known: Offsets, end: Offsets) -> list[TopicPartition]:
        return sorted(key for key in known.keys() & end.keys() if end[key] < known[key])

    def _take_made_anew(self, known: Offsets) -> Offsets | None:
        """Report read topics that were deleted and recreated since the last check.

        Returns the offsets at which the query continues, as a separate empty micro-batch, so that the checkpoint
        records where the new topic's records begin.
        """
        planner = self._planner()
        changed: set[str] = set()
        for topic in {topic for topic, _ in self._partitions}:
            found = planner.topic_id(topic)
            if found is not None and found != self._topic_ids.setdefault(topic, found):
                self._topic_ids[topic] = found
                changed.add(topic)
        anew = changed & {topic for topic, _ in known}
        if not anew:
            return None
        for topic in sorted(anew):
            planner.lost(f"topic {topic!r} was deleted and made anew: what was not read of it before is lost")
        first = planner.earliest(key for key in self._partitions if key[0] in anew)
        for epochs in (self._start_epochs, self._target_epochs):
            for key in first:
                epochs.pop(key, None)
        if self._target is not None:  # the new records arrived after the run had fixed its end
            self._target = {key: end for key, end in self._target.items() if key[0] not in anew} | first
        return {key: offset for key, offset in known.items() if key[0] not in anew} | first

    def _take_truncated(self, known: Offsets) -> Offsets | None:
        """Report records before the start of the next micro-batch that a new leader's log lacks (KIP-320).

        Returns the offsets at which the query continues, as a separate empty micro-batch: the offsets of the lost
        records belong to others, or soon will.
        """
        planner = self._planner()
        now = {key: epoch for key, epoch in self._latest_epochs.items() if key in known and epoch != NO_EPOCH}
        before = {key: epoch for key, epoch in self._start_epochs.items() if now.get(key, epoch) != epoch}
        lost = planner.truncated({key: known[key] for key in before}, before) if before else {}
        for (topic, partition), offset in sorted(lost.items()):
            planner.lost(
                f"{topic}-{partition} was truncated: its records from offset {offset} to {known[topic, partition] - 1} "
                "were read, and are lost with a former leader"
            )
        self._start_epochs.update(now)
        if not lost:
            return None
        if self._target is not None and self._latest is not None:
            self._target |= {key: min(self._target.get(key, 0), self._latest.get(key, 0)) for key in lost}
            self._target_epochs |= {key: now[key] for key in lost}
        return known | lost

    # -- the archive's table ---------------------------------------------------------------------------------------

    def _known_history(self, *, renew: bool = False) -> History | None:
        """The table as it was at the start of the run, or is now. Raises SourceError if it is not of this topic."""
        history = self._history
        if history is None:
            return None
        topic = self._options.subscription.topics[0]
        if not self._partitions:
            self._discover()
        if renew or not history.is_known or self._topic_ids.get(topic, history.topic_id()) != history.topic_id():
            planner = self._planner()
            history.renew(self._topic_ids.get(topic), planner.latest, planner.pause, self._options.offset_attempts)
        return history

    def _start(self, spec: OffsetSpec) -> Offsets:
        """Start offsets by an option: the earliest is the first of the table and the log together."""
        planner = self._planner()
        start = planner.resolve(spec, self._partitions, starting=True)
        history = self._known_history()
        if history is None:
            return planner.clamp_to_log(start)
        earliest = [key for key in start if EARLIEST in (spec.everywhere, (spec.offsets or {}).get(key))]
        start |= history.first({key: start[key] for key in earliest})
        seams = history.seams()
        above = {key: offset for key, offset in start.items() if offset >= seams.get(key, 0)}
        return start | planner.clamp_to_log(above) | self._clamped_to_table(history, start, above)

    def _clamped_to_table(self, history: History, start: Offsets, above: Offsets) -> Offsets:
        """Start offsets below the seam: one in a gap that the log has lost, too, is raised, and reported."""
        below = {key: offset for key, offset in start.items() if key not in above}
        gaps = {key: gap for key, offset in below.items() if (gap := history.gap_at(key, offset)) is not None}
        first = self._planner().earliest(gaps)
        for key, gap in sorted(gaps.items()):
            what = LogPart(key, *gap, is_gap=True).lost(first[key], history.path)
            if what is not None:
                self._planner().lost(what)
                below[key] = min(first[key], gap[1])
        return below

    def _split(self, begins: Offsets, ends: Offsets) -> tuple[list[HistoryPartition], list[LogPart]]:
        """The tasks that read the table, and what is read from the log, which has it; the rest is a data loss."""
        history = self._known_history()
        if history is None:
            begins = self._planner().clamp_to_log(begins)
            return [], [LogPart(key, begin, ends[key]) for key, begin in sorted(begins.items())]
        for _ in range(TABLE_LOOKS_MAX):
            tasks, parts = history.split(begins, ends)
            first = self._planner().earliest({part.key for part in parts})
            lost = [what for part in parts if (what := part.lost(first[part.key], history.path)) is not None]
            if not lost:
                return tasks, parts
            # Retention may have deleted what lay above the seam before: the table may have it by now.
            version = history.version
            self._known_history(renew=True)
            if history.version == version:
                break
        else:
            raise SourceError(
                f"the table {history.path} got a new version at each of {TABLE_LOOKS_MAX} looks: start the query again"
            )
        for what in lost:
            self._planner().lost(what)
        there = [dataclasses.replace(part, start=max(part.start, first[part.key])) for part in parts]
        return tasks, [part for part in there if part.start < part.end]

    # -- offsets -----------------------------------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Start offsets of a new query: startingOffsets, by default latest."""
        with client_errors():
            planner = self._planner()
            self._discover()
            spec = self._options.starting or OffsetSpec(everywhere=LATEST)
            start = self._start(spec)
            if spec.offsets:
                start = planner.clamp_to_end(start, "startingOffsets")
            return to_source_offset(start)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """maxOffsetsPerTrigger, if set, else minOffsetsPerTrigger; Python sources cannot return both (see below)."""
        limit, least = self._options.offsets_per_trigger_max, self._options.offsets_per_trigger_min
        if limit is not None:
            return ReadMaxRows(limit)
        return ReadAllAvailable() if least is None else ReadMinRows(least)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Fix the end of an available-now run."""
        with client_errors():
            self._target = dict(self._ends())
            self._target_epochs = dict(self._latest_epochs)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """The end of the next micro-batch; `start` if there is no data after a short wait.

        With a limit other than ReadAllAvailable, the options' minimum also applies: the reader measures the delay
        itself, because Spark's Python sources do not support a delay.
        """
        if not isinstance(limit, ReadAllAvailable | ReadMaxRows | ReadMinRows):
            raise SourceError(f"the read limit {type(limit).__name__} is not supported; use maxOffsetsPerTrigger")
        with client_errors():
            known = from_source_offset(start)
            # An idle query requests the ends once per wait, after it.
            is_idle, self._is_idle = self._is_idle and self._target is None, False
            end = known if is_idle else self._reachable(known)
            if end == known and self._target is None:
                assert self._waiter is not None
                self._waiter.wait(known, IDLE_WAIT_MS)
                end = self._reachable(known)
            if end == known:
                self._is_idle = True
                return start
            is_forward = all(end.get(key, -1) >= offset for key, offset in known.items())
            history = self._known_history() if is_forward else None
            if history is not None:
                most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
                past = history.batch_end(self._with_new_partitions(known, end), end, most)
                if past is not None:
                    self._triggered_s = time.monotonic()
                    return to_source_offset(past)
            if not isinstance(limit, ReadAllAvailable) and self._too_few(known, end):
                time.sleep(IDLE_WAIT_MS / 1000)
                end = self._reachable(known)
                if self._too_few(known, end):
                    return start
            self._triggered_s = time.monotonic()
            if isinstance(limit, ReadMaxRows):
                end = limit_by_backlog(self._with_new_partitions(known, end), end, limit.max_rows)
            return to_source_offset(end)

    def _too_few(self, known: Offsets, end: Offsets) -> bool:
        """Whether fewer offsets than minOffsetsPerTrigger are available, and maxTriggerDelay has not passed.

        The first micro-batch of a run never waits, as in Spark. An available-now run does not wait either, since it
        would end with unread records.
        """
        least = self._options.offsets_per_trigger_min
        if least is None or self._target is not None:
            return False
        if any(end.get(key, offset) < offset for key, offset in known.items()):
            return False  # an empty micro-batch records where the query continues after a loss
        if time.monotonic() - self._triggered_s >= self._options.trigger_delay_ms_max / 1000:
            return False
        return sum(max(0, offset - known.get(key, 0)) for key, offset in end.items()) < least

    def _with_new_partitions(self, known: Offsets, end: Offsets) -> Offsets:
        """Start offsets for every partition of `end`: a new partition is read from its beginning."""
        first = self._planner().earliest(key for key in end if key not in known)
        history = self._known_history() if first else None
        if history is None:
            return known | first
        if any(offset > 0 for offset in history.first(first).values()):
            # It was added, archived and trimmed during the run: the table as it was then does not know.
            self._known_history(renew=True)
        return known | history.first(first)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name
        """The last known end offsets, from which Spark's progress shows the backlog."""
        return None if self._latest is None else to_source_offset(self._latest)

    # -- data --------------------------------------------------------------------------------------------------------

    def partitions(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> Sequence[InputPartition]:
        """The tasks of the micro-batch."""
        with client_errors():
            known, ends = from_source_offset(start), self._still_there(from_source_offset(end))
            planner = self._planner()
            begins = self._with_new_partitions(known, ends)
            for topic, partition in sorted(ends.keys() - known.keys()):
                if begins[topic, partition] > 0:
                    planner.lost(
                        f"{topic}-{partition} is new, but begins at offset {begins[topic, partition]}; "
                        "records were deleted (by retention) before they were read"
                    )
            past, parts = self._split({key: begins[key] for key in ends if begins[key] < ends[key]}, ends)
            epochs = self._latest_epochs if self._target is None else self._target_epochs
            ranges = [
                OffsetRange(
                    *part.key,
                    part.start,
                    part.end,
                    self._topic_ids.get(part.key[0]),
                    leader_epoch=epochs.get(part.key, NO_EPOCH),
                )
                for part in parts
            ]
            tasks: list[HistoryPartition | RangePartition] = [*past, *plan_tasks(ranges, self._options)]
            if past:
                tasks.sort(key=_place)
            return tasks

    def _still_there(self, ends: Offsets) -> Offsets:
        """The existing partitions; missing ones are a data loss, as when a batch is planned again after a restart."""
        if not ends.keys() <= set(self._partitions):
            self._discover()
        gone = sorted(ends.keys() - set(self._partitions))
        for topic, partition in gone:
            self._planner().lost(
                f"{topic}-{partition} is gone; its records up to offset {ends[topic, partition]} are lost"
            )
        return {key: end for key, end in ends.items() if key not in gone}

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Fetch and decode one range."""
        if self._history is None or self._schema is None:
            return read_range(partition, self._options)
        columns = cast("StructType", self._schema[ARCHIVED].dataType)
        if isinstance(partition, HistoryPartition):
            return read_history(partition, columns, self._schema)
        return (with_no_history(batch, columns) for batch in read_range(partition, self._options))

    def stop(self) -> None:
        """Close the connections."""
        if self._waiter is not None:
            self._waiter.close()
        if self._cluster is not None:
            self._cluster.close()


def _place(task: HistoryPartition | RangePartition) -> tuple[str, int, int]:
    """Where a task begins: rows of the table and of the log come by offset, where one task does not have both."""
    part = task if isinstance(task, HistoryPartition) else task.ranges[0]
    return part.topic, part.partition, part.start
