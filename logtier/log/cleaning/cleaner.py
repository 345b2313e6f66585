"""Compaction: chooses the dirtiest log, cleans it in a separate process, and swaps the result in."""

import asyncio
import logging
import os
from collections.abc import AsyncGenerator, Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from headwater.logtier.config import BrokerConfig
from headwater.logtier.log.cleaning.cleaner_job import (
    NO_DATA_OFFSET,
    CleanedGroup,
    CleanerFailure,
    CleanerJob,
    CleanerResult,
)
from headwater.logtier.log.cleaning.cleaner_policy import (
    Cleanable,
    SegmentSummary,
    SourceSegment,
    dirtiest,
    find_cleanable,
    given_up_before,
    needs_times,
)
from headwater.logtier.log.cleaning.cleaner_process import CleanerDiedError, CleanerProcess, Worker
from headwater.logtier.log.flushing.checkpoints import read_checkpoint, write_checkpoint
from headwater.logtier.log.log import Log
from headwater.logtier.log.retention import RetentionHold
from headwater.logtier.log.retention_holds import PassHolds, RetentionHolds
from headwater.logtier.log.segment_swap import remove_cleaned, swap_in
from headwater.logtier.log.segments.segment import LogSegment
from headwater.logtier.log.segments.segment_leases import SegmentUse
from headwater.logtier.protocol.errors import KafkaError
from headwater.logtier.protocol.topic_partition import TopicPartition
from headwater.logtier.records.compression import CorruptRecordsError
from headwater.logtier.runtime.clock import Clock
from headwater.logtier.runtime.disk import Disk

_logger = logging.getLogger(__name__)

CLEANER_OFFSETS: Final = "cleaner-offset-checkpoint"

# A log is no longer cleaned after it ended the cleaner process this many times in a row.
_DEATHS_MAX: Final = 2
# Otherwise a backoff of 0 would keep the event loop busy.
_BACKOFF_MS_MIN: Final = 10
# Time before a log is cleaned again after a transient failure.
_RETRY_MS: Final = 15_000
# Time for which logs that groups hold wait for a thread before their groups are asked first.
_HELD_WAIT_MS: Final = 60_000
_INDEX_ENTRY_BYTES: Final = 8
_MB: Final = 1_000_000

# retention.hold.groups and retention.hold.max.bytes of a topic.
_HoldConfigs = tuple[tuple[str, ...], int]


@dataclass(slots=True)
class CleanerCounters:
    """Counters of the cleaner since the start, for metrics. Bytes read count both passes."""

    runs: int = 0
    failures: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    records_read: int = 0
    records_kept: int = 0
    last_run_ms: int = 0
    dirty_ratio_max: float = 0.0
    map_utilization_max: float = 0.0
    #: Reasons why logs are no longer cleaned until the next start.
    uncleanable: dict[TopicPartition, str] = field(default_factory=dict)


class _AbandonedError(Exception):
    """The log was removed, or changed since the cleaning began."""


class _SwapError(Exception):
    """The disk failed while files were renamed: the next start finishes the swap."""


class LogCleaner:
    """Compacts the logs whose `cleanup.policy` includes compact.

    Each cleaning runs in a `CleanerProcess`; this class chooses, swaps and keeps state on the event loop, with few
    system calls at a time. Invariants: at most `log.cleaner.threads` cleanings run, at most one per log; no process
    runs while no log is due. File per log folder: `cleaner-offset-checkpoint`, in Kafka's format, with the offset up to
    which each log is cleaned; a lost file costs only a repeated cleaning.
    """

    def __init__(
        self,
        config: Callable[[], BrokerConfig],
        disk: Disk,
        clock: Clock,
        logs: Mapping[TopicPartition, Log],
        stable_offset: Callable[[TopicPartition], int],
        *,
        holds: RetentionHolds | None = None,
        new_worker: Callable[[], Worker] = CleanerProcess,
    ) -> None:
        """Create a cleaner; `start` begins its work.

        Args:
            config: Returns the broker's present configs.
            stable_offset: Returns a partition's last stable offset; with KafkaError the partition is skipped.
            holds: Asks what groups hold; without it, a topic with such groups is not cleaned.
        """
        self.counters = CleanerCounters()
        self._config = config
        self._disk = disk
        self._clock = clock
        self._logs = logs
        self._stable_offset = stable_offset
        self._holds = holds or RetentionHolds(clock)
        self._new_worker = new_worker
        self._idle_workers: list[Worker] = []
        self._running: dict[TopicPartition, asyncio.Task[None]] = {}
        self._loop_task: asyncio.Task[None] | None = None
        self._deaths: dict[TopicPartition, int] = {}
        self._resting_until_ms: dict[TopicPartition, int] = {}
        #: The log object and the offset: another log of the same name has another history.
        self._cleaned_to: dict[TopicPartition, tuple[Log, int]] = {}
        self._unwritten: set[str] = set()
        #: Since when logs that groups hold are due and found no thread.
        self._held_wait_since_ms: int | None = None
        self._held_ratio_max = 0.0

    def start(self) -> None:
        """Begin to clean the present and future logs."""
        self.load_checkpoints()
        self._loop_task = asyncio.create_task(self._run())

    async def clean_dirtiest(self) -> bool:
        """Clean the dirtiest log that is due and wait for it; False if none is. Logs without hold groups come first."""
        await self._begin_due(1)
        running = list(self._running.values())
        await asyncio.gather(*running)
        return bool(running)

    def load_checkpoints(self) -> None:
        """Read the offsets up to which the present logs are cleaned."""
        for directory in {os.path.dirname(log.directory) for log in self._logs.values()}:
            try:
                offsets = read_checkpoint(self._disk, directory, CLEANER_OFFSETS)
            except (OSError, ValueError) as error:
                _logger.warning(
                    "%s: %s; the compacted logs in this folder are cleaned from their start", directory, error
                )
                continue
            for topic_partition, offset in offsets.items():
                log = self._logs.get(topic_partition)
                if log is not None and os.path.dirname(log.directory) == directory:
                    self._cleaned_to[topic_partition] = (log, offset)

    async def stop(self) -> None:
        """Cancel running cleanings; segments already swapped in stay cleaned."""
        tasks = [*self._running.values(), *([self._loop_task] if self._loop_task else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._stop_idle_workers()

    async def _run(self) -> None:
        while True:
            config = self._config()
            try:
                self._forget_gone_logs()
                self._holds.keep_compaction(self._held_by_groups() if config.log_cleaner_enable else ())
                if config.log_cleaner_enable and len(self._running) < config.log_cleaner_threads:
                    await self._begin_due(config.log_cleaner_threads)
                if not self._running:
                    await self._stop_idle_workers()
            except Exception:
                _logger.exception("the cleaner could not choose a log")
            backoff_s = max(config.log_cleaner_backoff_ms, _BACKOFF_MS_MIN) / 1000
            if self._running:
                running = list(self._running.values())
                await asyncio.wait(running, timeout=backoff_s, return_when=asyncio.FIRST_COMPLETED)
            else:
                await asyncio.sleep(backoff_s)

    async def _stop_idle_workers(self) -> None:
        workers, self._idle_workers = self._idle_workers, []
        for worker in workers:
            await worker.stop()

    # -- choosing

    async def _begin_due(self, threads: int) -> None:
        """Begin to clean what is due, the dirtiest log first, until as many cleanings run.

        Coordinators of groups may take seconds to answer. So logs that no group holds begin first, and groups are asked
        only if a log that they hold is due and a thread is left. Once it has waited for long, its groups are asked
        first: other logs may always be due.
        """
        now_ms = self._clock.monotonic_ms()
        held = self._held_and_due()
        if not held:
            self._held_wait_since_ms = None
            self._held_ratio_max = 0.0
        is_turn_of_held = self._held_wait_since_ms is not None and now_ms - self._held_wait_since_ms >= _HELD_WAIT_MS
        if not is_turn_of_held:
            self._begin_all(threads, None)
        if held and len(self._running) >= threads:
            self._held_wait_since_ms = now_ms if self._held_wait_since_ms is None else self._held_wait_since_ms
        elif held:
            self._held_wait_since_ms = None
            self._begin_all(threads, await self._holds.ask(held))

    def _held_by_groups(self) -> list[TopicPartition]:
        """Return the logs that are compacted, and of which groups may hold records."""
        return [
            topic_partition
            for topic_partition, log in self._logs.items()
            if log.config.retention_hold_groups
            and "compact" in log.config.cleanup_policy
            and topic_partition not in self.counters.uncleanable
        ]

    def _held_and_due(self) -> list[Log]:
        """Return the logs that would be cleaned if no group held them; of the others compaction holds nothing."""
        now_ms = self._clock.now_ms()
        due = []
        for topic_partition, log in self._logs.items():
            if log.config.retention_hold_groups and self._may_be_cleaned(topic_partition, log):
                cleanable = self._cleanable(topic_partition, log, None, now_ms)
                if cleanable is not None and cleanable.is_due(log.config):
                    due.append(log)
                else:
                    self._holds.note_nothing_due(topic_partition)
        return due

    def _begin_all(self, threads: int, holds: PassHolds | None) -> None:
        while len(self._running) < threads and self._begin_next(holds):
            pass

    def _begin_next(self, holds: PassHolds | None) -> bool:
        """Begin to clean the dirtiest log that is due, without `holds` of those that no group holds; False if none."""
        now_ms = self._clock.now_ms()
        found: dict[TopicPartition, tuple[Log, Cleanable, RetentionHold | None]] = {}
        held_ratios = [0.0]
        for topic_partition, log in self._logs.items():
            is_held = bool(log.config.retention_hold_groups)
            if not self._may_be_cleaned(topic_partition, log) or (is_held and (holds is None or not holds.has(log))):
                continue
            hold = None if holds is None else holds.of(log)
            cleanable = self._cleanable(topic_partition, log, hold, now_ms)
            if cleanable is not None:
                found[topic_partition] = (log, cleanable, hold)
                if is_held:
                    held_ratios.append(cleanable.dirty_ratio)
        chosen, ratio_max = dirtiest(
            (topic_partition, cleanable, log.config) for topic_partition, (log, cleanable, _) in found.items()
        )
        if holds is not None:
            self._held_ratio_max = max(held_ratios)
        self.counters.dirty_ratio_max = max(ratio_max, self._held_ratio_max)
        if chosen is None:
            return False
        log, cleanable, hold = found[chosen]
        cleaning = self._clean(chosen, log, cleanable, hold, _hold_configs(log))
        task = asyncio.create_task(cleaning, name=f"clean-{chosen}")
        self._running[chosen] = task
        task.add_done_callback(lambda _: self._running.pop(chosen, None))
        return True

    def _may_be_cleaned(self, topic_partition: TopicPartition, log: Log) -> bool:
        return (
            "compact" in log.config.cleanup_policy
            and topic_partition not in self._running
            and topic_partition not in self.counters.uncleanable
            and log.health.failure is None
            and not log.leases.are_out_for(SegmentUse.COPYING)
            and self._clock.monotonic_ms() >= self._resting_until_ms.get(topic_partition, 0)
        )

    def _cleanable(
        self, topic_partition: TopicPartition, log: Log, hold: RetentionHold | None, now_ms: int
    ) -> Cleanable | None:
        """Return what of a log may be cleaned, None if that cannot be known."""
        known = self._cleaned_to.get(topic_partition)
        cleaned_to = known[1] if known is not None and known[0] is log else None
        dirty_from = log.log_start_offset if cleaned_to is None else cleaned_to
        try:
            cleanable = find_cleanable(
                _summaries(log, dirty_from),
                cleaned_to=cleaned_to,
                log_start_offset=log.log_start_offset,
                log_end_offset=log.log_end_offset,
                stable_offset=self._stable_offset(topic_partition),
                config=log.config,
                now_ms=now_ms,
                hold=hold,
            )
        except KafkaError:
            return None  # led by another broker, or being created
        except (OSError, CorruptRecordsError) as error:
            self._give_up_on(topic_partition, str(error))
            return None
        if hold is not None:
            self._holds.note_cleanable(log, hold, cleanable.held_bytes)
        return cleanable

    # -- cleaning

    async def _clean(
        self,
        topic_partition: TopicPartition,
        log: Log,
        cleanable: Cleanable,
        hold: RetentionHold | None,
        hold_configs: _HoldConfigs,
    ) -> None:
        started_ms = self._clock.monotonic_ms()
        sources = [segment for segment in log.segments if segment.base_offset < cleanable.end_offset]
        directory = log.directory
        worker = self._idle_workers.pop() if self._idle_workers else self._new_worker()
        is_worker_usable = is_done = False
        lease = log.leases.take(SegmentUse.CLEANING)
        try:
            job = self._job(log, sources, cleanable)
            result = await self._follow(worker, job, topic_partition, log, sources, hold_configs)
            is_worker_usable = True
            if isinstance(result, CleanerResult):
                is_done = True
                self._done(topic_partition, log, result, self._clock.monotonic_ms() - started_ms)
                if hold is not None:
                    given_up_bytes = given_up_before(job.segments, cleanable, hold, result.cleaned_to)
                    self._holds.note_cleaned(log, hold, given_up_bytes)
            elif self._logs.get(topic_partition) is log:
                self._failed(topic_partition, result)
        except _AbandonedError:
            pass
        except CleanerDiedError as error:
            self._died(topic_partition, error)
        except (_SwapError, CorruptRecordsError) as error:
            self.counters.failures += 1
            self._give_up_on(topic_partition, str(error))
        except OSError as error:  # no process could be started
            self._failed(topic_partition, CleanerFailure(str(error), is_damage=False))
        finally:
            lease.give_back()
            if is_worker_usable:
                self._idle_workers.append(worker)
            else:
                await worker.stop()
            if not is_done:
                self._remove_left_overs(directory, sources)

    def _job(self, log: Log, sources: Sequence[LogSegment], cleanable: Cleanable) -> CleanerJob:
        broker, topic = self._config(), log.config
        processes = max(1, broker.log_cleaner_threads)
        return CleanerJob(
            directory=log.directory,
            segments=[
                SourceSegment(
                    segment.base_offset,
                    segment.size,
                    segment.size // max(topic.index_interval_bytes, 1) * _INDEX_ENTRY_BYTES,
                    segment.modified_ms,
                )
                for segment in sources
            ],
            first_dirty_offset=cleanable.first_dirty_offset,
            end_offset=cleanable.end_offset,
            now_ms=self._clock.now_ms(),
            delete_retention_ms=topic.delete_retention_ms,
            segment_bytes=topic.segment_bytes,
            segment_index_bytes=topic.segment_index_bytes,
            index_interval_bytes=topic.index_interval_bytes,
            aborted=log.aborted_transactions(sources[0].base_offset, cleanable.end_offset),
            producers={
                producer_id: (state.batches[-1].last_offset if state.batches else NO_DATA_OFFSET, state.epoch)
                for producer_id, state in log.producers
            },
            dedupe_buffer_bytes=broker.log_cleaner_dedupe_buffer_size // processes,
            load_factor=broker.log_cleaner_io_buffer_load_factor,
            io_buffer_bytes=broker.log_cleaner_io_buffer_size // processes,
            io_bytes_per_second=broker.log_cleaner_io_max_bytes_per_second / processes,
        )

    async def _follow(
        self,
        worker: Worker,
        job: CleanerJob,
        topic_partition: TopicPartition,
        log: Log,
        sources: Sequence[LogSegment],
        hold_configs: _HoldConfigs,
    ) -> CleanerResult | CleanerFailure:
        """Swap in each reported group until the final report."""
        swapped = 0
        reports = worker.clean(job)
        try:
            async for report in reports:
                if not isinstance(report, CleanedGroup):
                    return report
                group = sources[swapped : swapped + report.source_count]
                swapped += report.source_count
                if _hold_configs(log) != hold_configs:
                    raise _AbandonedError  # nobody was asked what the new groups hold, nor is the new limit counted
                self._check_unchanged(topic_partition, log, job, group, swapped)
                self._swap_in(log, group, report)
        finally:
            if isinstance(reports, AsyncGenerator):
                await reports.aclose()
        raise CleanerDiedError("the cleaner process ended")

    def _swap_in(self, log: Log, group: Sequence[LogSegment], report: CleanedGroup) -> None:
        now_ms = self._clock.now_ms()
        try:
            swap_in(self._disk, log, group, size_bytes=report.size_bytes, modified_ms=report.modified_ms, now_ms=now_ms)
        except OSError as error:
            log.health.observe(f"rename files in {log.directory}", error)
            raise _SwapError(f"cannot rename files in {log.directory}: {error.strerror}") from error
        log.durability.add_names_in(log.directory)
        log.durability.request()

    def _check_unchanged(
        self,
        topic_partition: TopicPartition,
        log: Log,
        job: CleanerJob,
        group: Sequence[LogSegment],
        swapped: int,
    ) -> None:
        """Raise _AbandonedError if the log changed meanwhile: deleted, moved, recreated, or truncated."""
        present = {id(segment) for segment in log.segments}
        sizes = [source.size_bytes for source in job.segments[swapped - len(group) : swapped]]
        if (
            self._logs.get(topic_partition) is not log
            or log.directory != job.directory
            or log.health.failure is not None
            or log.leases.are_out_for(SegmentUse.COPYING)
            or "compact" not in log.config.cleanup_policy
            or any(id(segment) not in present for segment in group)
            or log.segments.active in group
            or [segment.size for segment in group] != sizes
        ):
            raise _AbandonedError

    # -- what became of it

    def _done(self, topic_partition: TopicPartition, log: Log, result: CleanerResult, duration_ms: int) -> None:
        self._deaths.pop(topic_partition, None)
        counters = self.counters
        counters.runs += 1
        counters.bytes_read += result.bytes_read
        counters.bytes_written += result.bytes_written
        counters.records_read += result.records_read
        counters.records_kept += result.records_kept
        counters.last_run_ms = duration_ms
        counters.map_utilization_max = max(counters.map_utilization_max, result.map_utilization)
        self._cleaned_to[topic_partition] = (log, result.cleaned_to)
        self._unwritten.add(os.path.dirname(log.directory))
        self._write_checkpoints()
        _logger.info(
            "compacted %s up to offset %d in %d ms: %d of %d records stay, %.1f MB",
            topic_partition,
            result.cleaned_to,
            duration_ms,
            result.records_kept,
            result.records_read,
            result.bytes_written / _MB,
        )

    def _failed(self, topic_partition: TopicPartition, failure: CleanerFailure) -> None:
        self.counters.failures += 1
        if failure.is_damage:
            self._give_up_on(topic_partition, failure.message)
        else:
            self._rest(topic_partition, failure.message)

    def _died(self, topic_partition: TopicPartition, error: CleanerDiedError) -> None:
        self.counters.failures += 1
        deaths = self._deaths[topic_partition] = self._deaths.get(topic_partition, 0) + 1
        if deaths >= _DEATHS_MAX:
            self._give_up_on(topic_partition, f"{error}, {deaths} times")
        else:
            self._rest(topic_partition, str(error))

    def _rest(self, topic_partition: TopicPartition, reason: str) -> None:
        self._resting_until_ms[topic_partition] = self._clock.monotonic_ms() + _RETRY_MS
        _logger.error("%s: compaction failed and will be retried: %s", topic_partition, reason)

    def _give_up_on(self, topic_partition: TopicPartition, reason: str) -> None:
        self.counters.uncleanable[topic_partition] = reason
        _logger.error("%s is not compacted again until the broker is restarted: %s", topic_partition, reason)

    def _remove_left_overs(self, directory: str, sources: Sequence[LogSegment]) -> None:
        """Remove the files of an unfinished cleaning."""
        try:
            remove_cleaned(self._disk, directory, [segment.base_offset for segment in sources])
        except OSError as error:
            _logger.warning("%s: left-overs of a compaction stay until the next start: %s", directory, error)

    def _forget_gone_logs(self) -> None:
        for topic_partition, (log, _) in list(self._cleaned_to.items()):
            if self._logs.get(topic_partition) is not log:
                del self._cleaned_to[topic_partition]
                self._unwritten.add(os.path.dirname(log.directory))
        per_log: tuple[MutableMapping[TopicPartition, Any], ...] = (
            self.counters.uncleanable,
            self._deaths,
            self._resting_until_ms,
        )
        for known in per_log:
            for topic_partition in [gone for gone in known if gone not in self._logs]:
                del known[topic_partition]
        self._write_checkpoints()

    def _write_checkpoints(self) -> None:
        for directory in list(self._unwritten):
            offsets = {
                topic_partition: offset
                for topic_partition, (log, offset) in self._cleaned_to.items()
                if os.path.dirname(log.directory) == directory
            }
            self._unwritten.discard(directory)
            try:
                # Without a sync: a file damaged by a power loss costs at most a repeated cleaning.
                write_checkpoint(self._disk, directory, CLEANER_OFFSETS, offsets, sync=False)
            except OSError as error:
                _logger.error("%s/%s cannot be written: %s", directory, CLEANER_OFFSETS, error.strerror)


def _hold_configs(log: Log) -> _HoldConfigs:
    """Return the configs by which groups hold records of a log."""
    return log.config.retention_hold_groups, log.config.retention_hold_max_bytes


def _summaries(log: Log, dirty_from: int) -> list[SegmentSummary]:
    """Return the segments for the choice; times, if needed, only of the dirty ones."""
    segments = log.segments
    if not needs_times(log.config):
        return [SegmentSummary(segment.base_offset, segment.size) for segment in segments]
    found: list[SegmentSummary] = []
    for i, segment in enumerate(segments):
        if segments.end_offset(i, log.log_end_offset) <= dirty_from or segment.size == 0:
            found.append(SegmentSummary(segment.base_offset, segment.size))
            continue
        newest_ms = segment.max_timestamp_ms
        found.append(
            SegmentSummary(
                segment.base_offset,
                segment.size,
                max(0, segment.first_timestamp_ms or 0),
                segment.modified_ms if newest_ms < 0 else newest_ms,
            )
        )
    return found
