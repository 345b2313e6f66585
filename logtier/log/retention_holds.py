"""Holds of retention: consumer groups that keep records of a topic until they have passed them.

Retention and compaction of a topic with `retention.hold.groups` go no further than what all the groups have committed.
Whatever is in doubt holds all records: deleted ones do not come back.
"""

import asyncio
import enum
import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol
from uuid import UUID

from headwater.logtier.config import TopicConfig
from headwater.logtier.log.log import Log
from headwater.logtier.log.retention import RetentionHold
from headwater.logtier.protocol.errors import KafkaError
from headwater.logtier.protocol.topic_partition import TopicPartition
from headwater.logtier.runtime.clock import Clock

_logger = logging.getLogger(__name__)

NEAR_LIMIT_SHARE: Final = 0.8
"""Share of retention.hold.max.bytes from which on the broker warns."""

ALARM_INTERVAL_MS: Final = 3_600_000
"""Time after which a warning about a partition is repeated."""

UNKNOWN_MS_MAX: Final = 60_000
"""Time for which the offset of a group may be unknown without a warning: a coordinator that moves needs seconds."""

WantedOffsets = Mapping[str, Mapping[TopicPartition, UUID]]
"""The partitions of each group, with the ids of their topics."""

CommittedOffsets = Mapping[str, Mapping[TopicPartition, int]]
"""Committed offsets by group and partition."""


class HoldGroups(Protocol):
    """Knows what groups have committed, whichever brokers coordinate them."""

    async def committed(self, wanted: WantedOffsets) -> CommittedOffsets:
        """Return committed offsets, for topics of these ids; those that are missing or not known are left out."""


class HoldAlarm(enum.Enum):
    """A condition of which the broker warns."""

    LIMIT_REACHED = enum.auto()
    NEAR_LIMIT = enum.auto()
    UNKNOWN = enum.auto()


@dataclass(slots=True)
class HoldState:
    """What the groups of a partition hold, as of the last pass of retention and of compaction.

    Attributes:
        topic_id: The topic: another one of the name has a state of its own.
        bytes_max: Limit of the held bytes, -1 without one.
        given_up_bytes: Bytes deleted or compacted although they were held, since the start of the broker.
    """

    retention_bytes: int = 0
    compaction_bytes: int = 0
    bytes_max: int = -1
    given_up_bytes: int = 0
    unknown_since_ms: int | None = None
    topic_id: UUID | None = None
    alarmed_ms: dict[HoldAlarm, int] = field(default_factory=dict)

    @property
    def held_bytes(self) -> int:
        """Bytes that stay only because of the groups. Retention and compaction may hold the same segments."""
        return max(self.retention_bytes, self.compaction_bytes)


def hold_of(
    config: TopicConfig, topic_partition: TopicPartition, log_end_offset: int, committed: CommittedOffsets
) -> RetentionHold:
    """Return the hold of a partition: from the lowest offset of its groups on, or all if one is not known. Pure.

    An offset beyond the log's end is one of records that are lost, or of another topic of the name.

    >>> config, flights = TopicConfig(retention_hold_groups=("a", "b")), TopicPartition("flights", 0)
    >>> hold_of(config, flights, 9, {"a": {flights: 7}, "b": {flights: 5}})
    RetentionHold(offset=5, bytes_max=-1, reason="group 'b' has not passed offset 5", is_known=True)
    >>> hold_of(config, flights, 9, {"a": {flights: 7}}).reason
    "no valid offset of group 'b' is known"
    """
    bytes_max = config.retention_hold_max_bytes
    lowest: tuple[int, str] | None = None
    for group_id in config.retention_hold_groups:
        offset = committed.get(group_id, {}).get(topic_partition)
        if offset is None:
            return RetentionHold(0, bytes_max, f"no valid offset of group {group_id!r} is known", is_known=False)
        if offset > log_end_offset:
            reason = f"offset {offset} of group {group_id!r} is beyond the log's end, {log_end_offset}"
            return RetentionHold(0, bytes_max, reason, is_known=False)
        if lowest is None or offset < lowest[0]:
            lowest = offset, group_id
    assert lowest is not None, f"{topic_partition} has no groups that hold records"
    return RetentionHold(lowest[0], bytes_max, f"group {lowest[1]!r} has not passed offset {lowest[0]}")


def alarm_of(state: HoldState, hold: RetentionHold, given_up_bytes: int, now_ms: int) -> HoldAlarm | None:
    """Return the most urgent alarm of a partition after a pass, None if all is well."""
    if given_up_bytes:
        return HoldAlarm.LIMIT_REACHED
    if hold.bytes_max > 0 and state.held_bytes >= NEAR_LIMIT_SHARE * hold.bytes_max:
        return HoldAlarm.NEAR_LIMIT
    is_long_unknown = state.unknown_since_ms is not None and now_ms - state.unknown_since_ms > UNKNOWN_MS_MAX
    return HoldAlarm.UNKNOWN if is_long_unknown and state.held_bytes else None


class PassHolds:
    """The holds of one pass of retention or compaction."""

    def __init__(self, asked: Mapping[TopicPartition, UUID], committed: CommittedOffsets) -> None:
        self._asked = asked
        self._committed = committed

    def of(self, log: Log) -> RetentionHold | None:
        """Return the hold of a log, None if its topic has no groups that hold records.

        What was not asked for this log, because its topic or the config is newer, counts as unknown.
        """
        if not log.config.retention_hold_groups:
            return None
        return hold_of(log.config, log.topic_partition, log.log_end_offset, self._committed if self.has(log) else {})

    def has(self, log: Log) -> bool:
        """Whether it was asked what groups hold of this log."""
        return self._asked.get(log.topic_partition) == log.topic_id


class RetentionHolds:
    """Asks for the groups' offsets before each pass, applies retention to the logs they hold, and warns of full holds.

    Invariant: an offset counts only for the pass before which it was asked. Leaders and followers ask alike, as each
    replica deletes by itself. Called on the event loop.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        #: Answers for the groups; until it is set, all records are held.
        self.groups: HoldGroups | None = None
        #: What groups hold, by partition.
        self.states: dict[TopicPartition, HoldState] = {}

    async def ask(self, logs: Iterable[Log]) -> PassHolds:
        """Return the holds of logs for one pass; without groups among their configs nobody is asked."""
        asked: dict[TopicPartition, UUID] = {}
        wanted: dict[str, dict[TopicPartition, UUID]] = {}
        for log in logs:
            for group_id in log.config.retention_hold_groups:
                asked[log.topic_partition] = log.topic_id
                wanted.setdefault(group_id, {})[log.topic_partition] = log.topic_id
        committed: CommittedOffsets = {}
        if wanted and self.groups is not None:
            try:
                committed = await self.groups.committed(wanted)
            except Exception:
                _logger.exception("asking for the offsets of the groups that hold records failed")
        return PassHolds(asked, committed)

    async def apply_retention(
        self, logs: Mapping[TopicPartition, Log], high_watermark: Callable[[TopicPartition], int]
    ) -> None:
        """Delete the old segments that the groups have passed, in all logs with such groups.

        A failure in one log is logged, and the others are still processed.
        """
        held = [log for log in logs.values() if log.config.retention_hold_groups]
        for gone in self.states.keys() - {log.topic_partition for log in held}:
            del self.states[gone]
        holds = await self.ask(held)
        now_ms = self._clock.now_ms()
        for log in held:
            await asyncio.sleep(0)  # the times of many segments may have to be read from their files
            hold = holds.of(log)
            if hold is None or logs.get(log.topic_partition) is not log:
                continue  # the log or its config has changed meanwhile
            try:
                deletion = log.old_segments(log.config, now_ms, high_watermark(log.topic_partition), hold)
                is_done = log.delete_oldest(deletion.count, now_ms) == deletion.count
            except (OSError, ValueError, KafkaError) as error:
                _logger.error("%s: retention failed: %s", log.topic_partition, error)
                if isinstance(error, OSError):
                    log.health.observe(f"apply retention in {log.directory}", error)
                continue
            state = self._state(log, hold)
            state.retention_bytes = deletion.held_bytes
            self._finish_pass(log, state, hold, deletion.given_up_bytes if is_done else 0)

    def note_cleanable(self, log: Log, hold: RetentionHold, held_bytes: int) -> None:
        """Record what a pass of the cleaner found."""
        state = self._state(log, hold)
        state.compaction_bytes = held_bytes
        self._finish_pass(log, state, hold, 0)

    def note_nothing_due(self, topic_partition: TopicPartition) -> None:
        """Record that compaction would clean nothing of a log without the hold either."""
        if (state := self.states.get(topic_partition)) is not None:
            state.compaction_bytes = 0

    def keep_compaction(self, compacted: Collection[TopicPartition]) -> None:
        """Forget what compaction holds of other logs: these are not compacted (any longer)."""
        for topic_partition in self.states.keys() - set(compacted):
            self.states[topic_partition].compaction_bytes = 0

    def note_cleaned(self, log: Log, hold: RetentionHold, given_up_bytes: int) -> None:
        """Record a cleaning of segments, some of which may have been held."""
        self._finish_pass(log, self._state(log, hold), hold, given_up_bytes)

    def _state(self, log: Log, hold: RetentionHold) -> HoldState:
        state = self.states.get(log.topic_partition)
        if state is None or state.topic_id != log.topic_id:
            state = self.states[log.topic_partition] = HoldState(topic_id=log.topic_id)
        state.bytes_max = hold.bytes_max
        if hold.is_known:
            state.unknown_since_ms = None
        elif state.unknown_since_ms is None:
            state.unknown_since_ms = self._clock.monotonic_ms()
        return state

    def _finish_pass(self, log: Log, state: HoldState, hold: RetentionHold, given_up_bytes: int) -> None:
        state.given_up_bytes += given_up_bytes
        now_ms = self._clock.monotonic_ms()
        alarm = alarm_of(state, hold, given_up_bytes, now_ms)
        alarmed_ms = None if alarm is None else state.alarmed_ms.get(alarm)
        if alarm is None or (alarmed_ms is not None and now_ms - alarmed_ms < ALARM_INTERVAL_MS):
            return
        state.alarmed_ms[alarm] = now_ms
        if alarm is HoldAlarm.LIMIT_REACHED:
            _logger.warning(
                "%s: retention.hold.max.bytes (%d) is reached: %d bytes are deleted or compacted although %s; let the "
                "group catch up, raise the limit, or remove the group from retention.hold.groups",
                log.topic_partition,
                hold.bytes_max,
                given_up_bytes,
                hold.reason,
            )
        elif alarm is HoldAlarm.NEAR_LIMIT:
            _logger.warning(
                "%s: %d bytes stay because %s; beyond retention.hold.max.bytes (%d) the oldest are deleted or "
                "compacted; let the group catch up, or raise the limit",
                log.topic_partition,
                state.held_bytes,
                hold.reason,
                hold.bytes_max,
            )
        else:
            _logger.warning(
                "%s: %d bytes stay because %s; let the group commit offsets, or remove it from retention.hold.groups",
                log.topic_partition,
                state.held_bytes,
                hold.reason,
            )
