"""The periodic work of a broker, and components that follow the metadata."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from typing import Final

from headwater.logtier.broker_stages import BrokerParts
from headwater.logtier.config import BrokerConfig
from headwater.logtier.group.coordinator import GroupCoordinator
from headwater.logtier.log.log_manager import LogManager
from headwater.logtier.log.retention_holds import RetentionHolds
from headwater.logtier.metadata.image import MetadataCache, MetadataDelta
from headwater.logtier.network.listeners import Listeners
from headwater.logtier.replication.replica_manager import ReplicaManager
from headwater.logtier.runtime.clock import Clock
from headwater.logtier.runtime.loop_lag import measure_loop_lag
from headwater.logtier.runtime.metrics import BrokerMetrics
from headwater.logtier.runtime.spawned_tasks import SpawnedTasks
from headwater.logtier.transaction.coordinator import TransactionCoordinator

logger = logging.getLogger(__name__)

#: Longest interval of log maintenance, for deletions whose delay has passed.
MAINTENANCE_INTERVAL_MS_MAX: Final = 30_000
#: Shortest interval of log maintenance, which runs on the event loop, for any configs.
MAINTENANCE_INTERVAL_MS_MIN: Final = 10
#: Interval of the check for much unflushed data.
FLUSH_CHECK_INTERVAL_S: Final = 1.0
#: First and longest delay before another attempt to create missing logs after a disk error, for which clients that
#: created the topic wait; the delay doubles each time.
MISSING_LOGS_INTERVAL_S_MIN: Final = 1.0
MISSING_LOGS_INTERVAL_S_MAX: Final = 30.0


async def begin_chores(config: BrokerConfig, parts: BrokerParts, clock: Clock, closing: AsyncExitStack) -> None:
    """Begin the periodic work, and apply the configs altered before the start."""
    services, log_manager = parts.services, parts.log_manager
    for chore in (
        _maintain(log_manager, parts.replica_manager, clock, _maintenance_interval_ms(config) / 1000),
        _apply_held_retention(log_manager, parts.replica_manager, parts.holds),
        _make_missing_logs(parts.replica_manager, (services.groups, services.transactions)),
        _flush_much_data(log_manager),
        measure_loop_lag(services.metrics),
    ):
        closing.callback(asyncio.create_task(chore).cancel)
    parts.metadata.subscribe(_forgetter(services.metrics))
    await _follow_configs(parts.metadata, log_manager, parts.listeners, closing)


async def _follow_configs(
    metadata: MetadataCache, log_manager: LogManager, listeners: Listeners, closing: AsyncExitStack
) -> None:
    """Apply altered configs to components that do not read them at each use.

    Configs altered before the start are applied at once, later ones at each change.
    """
    tasks = SpawnedTasks("broker")
    closing.push_async_callback(tasks.cancel)
    applied = metadata.static_config

    async def apply() -> None:
        nonlocal applied
        applied = metadata.config
        log_manager.configure(applied)
        await listeners.limit_connections(applied)

    def follow(_: MetadataDelta) -> None:
        if metadata.config is not applied:
            tasks.spawn(apply())

    metadata.subscribe(follow)
    if metadata.config is not applied:
        # An error is logged: the broker starts with any altered config, so that the config can be corrected.
        await asyncio.wait((tasks.spawn(apply()),))


async def _make_missing_logs(
    replica_manager: ReplicaManager, coordinators: Sequence[GroupCoordinator | TransactionCoordinator]
) -> None:
    """Create the logs that failed with a disk error (full disk, no file descriptor), with growing delays."""
    pause_s = MISSING_LOGS_INTERVAL_S_MIN
    while True:
        await asyncio.sleep(pause_s)
        had_missing = replica_manager.has_missing
        try:
            are_all_there = await replica_manager.make_missing_logs()
            if had_missing:
                # A created log may belong to a coordinator, which looked for it when its topic was created.
                for coordinator in coordinators:
                    coordinator.leadership_changed()
        except Exception:
            logger.exception("creating the missing logs failed")
            are_all_there = False
        pause_s = MISSING_LOGS_INTERVAL_S_MIN if are_all_there else min(2 * pause_s, MISSING_LOGS_INTERVAL_S_MAX)


async def _maintain(log_manager: LogManager, replica_manager: ReplicaManager, clock: Clock, interval_s: float) -> None:
    """Maintain the logs between requests; a failure is logged, and the next round follows."""
    while True:
        await asyncio.sleep(interval_s)
        try:
            log_manager.maintain(clock.now_ms(), replica_manager.high_watermark)
        except OSError as error:
            logger.error("log maintenance failed: %s", error)
        except Exception:
            logger.exception("log maintenance failed")


async def _apply_held_retention(
    log_manager: LogManager, replica_manager: ReplicaManager, holds: RetentionHolds
) -> None:
    """Apply retention to the logs that groups hold, apart from the maintenance: a coordinator may answer late."""
    while True:
        interval_ms = log_manager.config.log_retention_check_interval_ms
        await asyncio.sleep(max(interval_ms, MAINTENANCE_INTERVAL_MS_MIN) / 1000)
        try:
            await holds.apply_retention(log_manager.logs, replica_manager.high_watermark)
        except Exception:
            logger.exception("applying retention to logs with holds failed")


async def _flush_much_data(log_manager: LogManager) -> None:
    """Flush before the interval ends if much data is unflushed, so that a start after a crash checks little."""
    while True:
        await asyncio.sleep(FLUSH_CHECK_INTERVAL_S)
        try:
            log_manager.flusher.flush_if_much_came()
        except Exception:
            logger.exception("flushing the logs failed")


def _maintenance_interval_ms(config: BrokerConfig) -> int:
    """Interval of log maintenance: that of its most frequent task, within the limits.

    >>> properties = {"log.dirs": "d", "log.flush.scheduler.interval.ms": 250}
    >>> _maintenance_interval_ms(BrokerConfig.from_properties(properties))
    250
    """
    wanted_ms = min(config.log_retention_check_interval_ms, config.log_flush_scheduler_interval_ms)
    return min(max(wanted_ms, MAINTENANCE_INTERVAL_MS_MIN), MAINTENANCE_INTERVAL_MS_MAX)


def _forgetter(metrics: BrokerMetrics) -> Callable[[MetadataDelta], None]:
    """Return a subscriber that removes the traffic counters of deleted topics."""

    def forget(delta: MetadataDelta) -> None:
        for topic in delta.deleted:
            metrics.topics.pop(topic.name, None)

    return forget
