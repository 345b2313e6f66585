"""Carries out a plan: what the cluster shows goes in, the moves to start next come out. Pure.

The state that must survive is the cluster itself: its assignments and running reassignments. A run that begins again
reads both and plans from there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from headwater.cli.reassignment.plan import LogDirMove, PartitionMove, ReassignmentPlan
from headwater.cli.reassignment.snapshot import ClusterSnapshot, PartitionSnapshot
from headwater.logtier.client.ongoing_reassignment import OngoingReassignment
from headwater.logtier.protocol.topic_partition import TopicPartition

__all__ = ["ClusterObservation", "PlanExecution", "PlanProgress"]

#: Observations for which a move may be in neither its old nor its new state: the brokers' metadata is behind the
#: controller's answers by up to some seconds. The shell observes twice a second or less often.
SETTLE_OBSERVATIONS: Final = 20
#: How often a move is started, if no answer says whether it was.
ATTEMPTS_MAX: Final = 3
#: Moves in one request: its answer stays small, and a controller writes it in few changes.
MOVES_PER_REQUEST_MAX: Final = 100


@dataclass(frozen=True, slots=True)
class ClusterObservation:
    """The cluster at one time.

    Attributes:
        snapshot: Present brokers, and the plan's partitions.
        running: All running reassignments, also of other partitions.
        copied: Bytes of replicas that are being created, by partition and broker.
    """

    snapshot: ClusterSnapshot
    running: Mapping[TopicPartition, OngoingReassignment]
    copied: Mapping[tuple[TopicPartition, int], int]


@dataclass(frozen=True, slots=True)
class PlanProgress:
    """How far a run is; bytes include those of running copies."""

    moved_replicas: int
    replicas: int
    moved_bytes: int
    total_bytes: int
    running: int


class _Status(Enum):
    PENDING = "pending"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"


@dataclass(slots=True)
class _MoveState:
    move: PartitionMove
    status: _Status = _Status.PENDING
    attempts: int = 0
    unsettled: int = 0
    hindered: int = 0
    reason: str = ""

    def fail(self, reason: str) -> None:
        self.status, self.reason = _Status.FAILED, reason

    def count_unsettled(self) -> bool:
        """Count one observation that fits no state; return whether there were too many."""
        self.unsettled += 1
        return self.unsettled >= SETTLE_OBSERVATIONS


@dataclass(slots=True)
class _LogDirState:
    move: LogDirMove
    is_started: bool = False
    is_over: bool = False
    unsettled: int = 0


@dataclass(slots=True)
class NextMoves:
    """What to start now."""

    moves: list[PartitionMove] = field(default_factory=list)
    log_dir_moves: list[LogDirMove] = field(default_factory=list)


class PlanExecution:
    """One run of a plan.

    Args:
        concurrent_moves: Copies that one broker may send or receive at a time.
        joined: Reassignments that ran when the plan was made, which the run waits for.
    """

    def __init__(self, plan: ReassignmentPlan, *, concurrent_moves: int, joined: Collection[TopicPartition]) -> None:
        assert concurrent_moves >= 1
        self.plan = plan
        self._limit = concurrent_moves
        self._known = frozenset(joined)
        self._joined = set(joined)
        self._states = {move.key: _MoveState(move) for move in plan.moves}
        self._log_dirs = [_LogDirState(move) for move in plan.log_dir_moves]
        #: Reassignments that another client has started since.
        self.foreign: tuple[TopicPartition, ...] = ()

    @property
    def failures(self) -> dict[str, str]:
        """Reasons of moves that were given up, by name."""
        failed = {str(key): each.reason for key, each in self._states.items() if each.status is _Status.FAILED}
        return failed | {
            f"{each.move.key} on broker {each.move.broker_id}": "it is still in its old folder"
            for each in self._log_dirs
            if each.is_over and each.unsettled
        }

    @property
    def is_over(self) -> bool:
        """Whether there is nothing to start and nothing to wait for."""
        return (
            not self._joined
            and all(each.status in (_Status.DONE, _Status.FAILED) for each in self._states.values())
            and all(each.is_over for each in self._log_dirs)
        )

    @property
    def changing_dirs(self) -> set[TopicPartition]:
        """Partitions of which a replica moves to another folder now."""
        return {each.move.key for each in self._log_dirs if each.is_started and not each.is_over}

    def observe(self, seen: ClusterObservation) -> NextMoves:
        """Take in the state of the cluster; return the moves to start, which then count as running."""
        for state in self._states.values():
            if state.status is _Status.PENDING:
                self._observe_pending(state, seen)
            elif state.status is _Status.RUNNING:
                self._observe_running(state, seen)
        self._joined = {key for key in self._joined if key in seen.running and self._is_unstarted(key)}
        self.foreign = tuple(sorted(key for key in seen.running if self._is_foreign(key)))
        self._observe_log_dirs(seen)
        if self.foreign:
            return NextMoves()
        return NextMoves(self._startable(seen), self._startable_log_dirs())

    def refuse(self, key: TopicPartition, reason: str, *, is_transient: bool) -> None:
        """Note that the controller refused to start a move; a transient refusal is followed by another attempt."""
        state = self._states[key]
        if is_transient and state.attempts < ATTEMPTS_MAX:
            state.status = _Status.PENDING
        else:
            state.fail(reason)

    def elections(self, seen: ClusterObservation) -> tuple[TopicPartition, ...]:
        """Return the partitions of the plan whose preferred leader is in sync and does not lead."""
        wanted = {key for key, each in self._states.items() if each.status is _Status.DONE} | {*self.plan.elections}
        return tuple(sorted(key for key in wanted if _lacks_preferred_leader(seen.snapshot.partitions.get(key))))

    def progress(self, seen: ClusterObservation) -> PlanProgress:
        """Return how far the copies of the plan are; changes of order are not counted."""
        copies = [each for each in self._states.values() if each.move.added]
        moved = sum(each.move.copied_bytes for each in copies if each.status is _Status.DONE)
        running = [each.move for each in copies if each.status is _Status.RUNNING]
        for move in running:
            moved += sum(min(seen.copied.get((move.key, each), 0), move.size_bytes) for each in move.added)
        total = sum(each.move.copied_bytes for each in copies)
        moved_replicas = sum(len(each.move.added) for each in copies if each.status is _Status.DONE)
        total += sum(each.move.size_bytes for each in self._log_dirs)
        moved += sum(each.move.size_bytes for each in self._log_dirs if each.is_over and not each.unsettled)
        moved_replicas += sum(each.is_over and not each.unsettled for each in self._log_dirs)
        started = sum(each.is_started and not each.is_over for each in self._log_dirs)
        return PlanProgress(
            moved_replicas,
            sum(len(each.move.added) for each in copies) + len(self._log_dirs),
            moved,
            total,
            len(running) + started + len(self._joined),
        )

    def waiting_for_brokers(self, seen: ClusterObservation) -> dict[TopicPartition, tuple[int, ...]]:
        """Return the brokers that are away by running reassignment: it ends when they are back."""
        away = {
            key: tuple(each for each in running.adding if each not in seen.snapshot.brokers)
            for key, running in sorted(seen.running.items())
        }
        return {key: brokers for key, brokers in away.items() if brokers}

    # -- what an observation says of a move --------------------------------------------------------------------------

    def _observe_pending(self, state: _MoveState, seen: ClusterObservation) -> None:
        key, move = state.move.key, state.move
        part, running = seen.snapshot.partitions.get(key), seen.running.get(key)
        if part is None:
            self._observe_missing(state)
        elif running is not None:
            if _is_same(running.target, move.after):
                state.status, state.unsettled = _Status.RUNNING, 0
            elif key not in self._known:
                state.fail(f"another client moves it to brokers {_listed(running.target)}")
        elif part.replicas == move.after:
            state.status = _Status.DONE
        elif part.replicas == move.before:
            state.unsettled = 0
        elif state.count_unsettled():
            state.fail(f"its replicas changed after the plan was made: {_listed(part.replicas)}")

    def _observe_running(self, state: _MoveState, seen: ClusterObservation) -> None:
        key, move = state.move.key, state.move
        part, running = seen.snapshot.partitions.get(key), seen.running.get(key)
        if running is not None:
            if _is_same(running.target, move.after):
                state.unsettled = 0
            elif key not in self._known or state.count_unsettled():
                state.fail(f"another client moves it to brokers {_listed(running.target)}")
        elif part is None:
            self._observe_missing(state)
        elif part.replicas == move.after:
            state.status = _Status.DONE
        elif state.count_unsettled():
            if part.replicas != move.before:
                state.fail(f"another client moved it to brokers {_listed(part.replicas)}")
            elif state.attempts >= ATTEMPTS_MAX:
                state.fail("the move ended without an effect: it was cancelled, or never started")
            else:
                state.status, state.unsettled = _Status.PENDING, 0

    def _observe_missing(self, state: _MoveState) -> None:
        """A deleted topic needs no move; metadata may lack a topic for a moment, so this is not believed at once."""
        if state.count_unsettled():
            state.status = _Status.DONE

    def _is_unstarted(self, key: TopicPartition) -> bool:
        state = self._states.get(key)
        return state is None or state.status is _Status.PENDING

    def _is_foreign(self, key: TopicPartition) -> bool:
        state = self._states.get(key)
        return key not in self._known and (state is None or state.status is _Status.FAILED)

    def _observe_log_dirs(self, seen: ClusterObservation) -> None:
        for state in self._log_dirs:
            if state.is_over or not state.is_started:
                continue
            part = seen.snapshot.partitions.get(state.move.key)
            path = None if part is None else (part.log_dirs or {}).get(state.move.broker_id)
            is_copying = (state.move.key, state.move.broker_id) in seen.copied
            if path == state.move.target:
                state.is_over, state.unsettled = True, 0
            elif is_copying:
                state.unsettled = 0
            else:
                state.unsettled += 1
                state.is_over = state.unsettled >= SETTLE_OBSERVATIONS

    # -- what can start ----------------------------------------------------------------------------------------------

    def _startable(self, seen: ClusterObservation) -> list[PartitionMove]:
        """Return the next moves within the limits; give up those that nothing that still runs could make possible."""
        busy = self._busy(seen)
        reserved = self._reserved(seen)
        chosen: list[PartitionMove] = []
        obstacles: list[tuple[_MoveState, str]] = []
        for state in self._states.values():
            if state.status is not _Status.PENDING or state.unsettled:
                continue
            if len(chosen) == MOVES_PER_REQUEST_MAX:
                break
            move = state.move
            obstacle = _obstacle(move, seen, reserved)
            if obstacle:
                obstacles.append((state, obstacle))
                continue
            part = seen.snapshot.partitions.get(move.key)
            ends = _ends(move.added, part)
            # The reassignment that this one replaces: it may wait for a dead broker, and would be in its own way.
            replaced = _ends(seen.running[move.key].adding, part) if move.key in seen.running else set()
            if any(busy[each] - (each in replaced) >= self._limit for each in ends):
                continue
            busy.subtract(replaced)
            busy.update(ends)
            for broker_id in move.added:
                reserved[broker_id] += move.size_bytes
            state.status, state.unsettled = _Status.RUNNING, 0
            state.attempts += 1
            chosen.append(move)
        is_idle = not chosen and not seen.running
        for state, obstacle in obstacles:
            # The room of a running copy, or a broker that returns, may still make it possible.
            state.hindered = state.hindered + 1 if is_idle else 0
            if state.hindered >= SETTLE_OBSERVATIONS:
                state.fail(obstacle)
        return chosen

    def _busy(self, seen: ClusterObservation) -> Counter[int]:
        """Return the copies that each broker sends or receives."""
        busy: Counter[int] = Counter()
        for key, running in seen.running.items():
            busy.update(_ends(running.adding, seen.snapshot.partitions.get(key)))
        for key, state in self._states.items():
            if state.status is _Status.RUNNING and key not in seen.running:
                busy.update(_ends(state.move.added, seen.snapshot.partitions.get(key)))
        return busy

    def _reserved(self, seen: ClusterObservation) -> Counter[int]:
        """Return the bytes that running copies will still occupy on each broker."""
        reserved: Counter[int] = Counter()
        for key, running in seen.running.items():
            part = seen.snapshot.partitions.get(key)
            if part is None:
                continue
            for broker_id in running.adding:
                reserved[broker_id] += max(part.size_bytes - seen.copied.get((key, broker_id), 0), 0)
        return reserved

    def _startable_log_dirs(self) -> list[LogDirMove]:
        """Return the next moves between folders, one a broker, once the moves between brokers are over."""
        if any(each.status in (_Status.PENDING, _Status.RUNNING) for each in self._states.values()):
            return []
        busy = {each.move.broker_id for each in self._log_dirs if each.is_started and not each.is_over}
        chosen = []
        for state in self._log_dirs:
            if not state.is_started and state.move.broker_id not in busy:
                busy.add(state.move.broker_id)
                state.is_started = True
                chosen.append(state.move)
        return chosen


def _ends(adding: Collection[int], part: PartitionSnapshot | None) -> set[int]:
    """Return the brokers that a copy occupies: those that receive, and the leader, which sends."""
    if not adding:
        return set()
    leader = None if part is None else part.leader
    return {*adding} if leader is None else {*adding, leader}


def _obstacle(move: PartitionMove, seen: ClusterObservation, reserved: Mapping[int, int]) -> str:
    """Return why a move cannot start now; '' if it can."""
    for broker_id in move.added:
        broker = seen.snapshot.brokers.get(broker_id)
        if broker is None:
            return f"broker {broker_id} is away"
        pinned = dict(move.log_dirs).get(broker_id)
        rooms = [each.room_bytes for each in broker.log_dirs if pinned in (None, each.path)]
        if not rooms:
            return f"broker {broker_id} has no log folder online" + (f" at {pinned}" if pinned else "")
        if None not in rooms and max(each or 0 for each in rooms) - reserved.get(broker_id, 0) < move.size_bytes:
            return f"broker {broker_id} has no room for its {move.size_bytes} bytes"
    if move.added and seen.snapshot.partitions[move.key].leader is None:
        return "it is offline: there is no leader to copy from"
    return ""


def _is_same(target: tuple[int, ...], after: tuple[int, ...]) -> bool:
    """Return whether a running reassignment ends in an assignment; while it runs its order may differ."""
    return set(target) == set(after)


def _lacks_preferred_leader(part: PartitionSnapshot | None) -> bool:
    return part is not None and part.leader != part.replicas[0] and part.replicas[0] in part.isr


def _listed(brokers: tuple[int, ...]) -> str:
    return ", ".join(map(str, brokers))
