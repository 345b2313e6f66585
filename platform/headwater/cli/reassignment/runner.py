"""Runs a plan: observes the cluster, starts what the execution returns, reports progress, and cleans up."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

from headwater.cli.reassignment.display import progress_line, stall_line
from headwater.cli.reassignment.execution import ClusterObservation, PlanExecution, PlanProgress
from headwater.cli.reassignment.plan import LogDirMove, PartitionMove, ReassignmentPlan
from headwater.cli.reassignment.reading import read_observation
from headwater.cli.reassignment.snapshot import ClusterSnapshot
from headwater.cli.reassignment.throttle import ReassignmentThrottle
from headwater.logtier.client.errors import BrokerConnectionError, BrokerError, ClientError, RequestTimeoutError
from headwater.logtier.client.ongoing_reassignment import OngoingReassignment
from headwater.logtier.client.replicas import ReplicaAdmin
from headwater.logtier.protocol.topic_partition import TopicPartition

__all__ = ["PlanResult", "PlanRunner", "RunClock"]

_T = TypeVar("_T")

POLL_S: Final = 0.5
PROGRESS_S: Final = 5.0
#: Time without a byte or a move after which the reason is reported, again and again.
STALL_S: Final = 60.0
#: A cluster without a controller, or whose brokers restart, answers again within a session; an operator may restart
#: brokers one by one meanwhile.
OUTAGE_MAX_S: Final = 300.0
#: Observations until preferred leaders that were elected show in the metadata.
ELECTION_OBSERVATIONS: Final = 20


class RunClock(Protocol):
    """Time: a monotonic clock in seconds, and waiting."""

    def monotonic(self) -> float:
        """Return the time."""

    def sleep(self, seconds: float, /) -> None:
        """Wait; Ctrl-C and SIGTERM are raised here."""


@dataclass(frozen=True, slots=True)
class PlanResult:
    """The end of a run: reasons of what failed, and reassignments of another client because of which it stopped."""

    progress: PlanProgress
    failures: dict[str, str]
    foreign: tuple[TopicPartition, ...]


class PlanRunner:
    """Runs one plan.

    Args:
        report: Receives lines about the progress.
        uninterrupted: Defers signals for a block: a request is answered, or a connection is unusable.
    """

    def __init__(
        self,
        admin: ReplicaAdmin,
        pace: RunClock,
        report: Callable[[str], None],
        uninterrupted: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self._admin = admin
        self._pace = pace
        self._report = report
        self._uninterrupted = uninterrupted

    def run(
        self,
        plan: ReassignmentPlan,
        snapshot: ClusterSnapshot,
        joined: Mapping[TopicPartition, OngoingReassignment],
        *,
        concurrent_moves: int,
        throttle_bytes: int | None,
    ) -> PlanResult:
        """Run a plan to its end. Throttles are removed at its end, at a failure, and when the caller is interrupted.

        Args:
            snapshot: The cluster for which the plan was made.
            joined: Reassignments that ran at that time; the run waits for them, and throttles them as well.
        """
        execution = PlanExecution(plan, concurrent_moves=concurrent_moves, joined=joined)
        keys = (
            {*joined, *plan.elections} | {each.key for each in plan.moves} | {each.key for each in plan.log_dir_moves}
        )
        sizes = {key: snapshot.partitions[key].size_bytes for key in keys if key in snapshot.partitions}
        with self._throttled([*plan.moves, *_as_moves(joined)], snapshot, throttle_bytes):
            seen = self._move(execution, sizes)
        if execution.foreign:
            return PlanResult(execution.progress(seen), execution.failures, execution.foreign)
        failures = execution.failures | self._elect(execution, sizes)
        return PlanResult(execution.progress(seen), failures, ())

    # -- moves -------------------------------------------------------------------------------------------------------

    def _move(self, execution: PlanExecution, sizes: Mapping[TopicPartition, int]) -> ClusterObservation:
        plan = execution.plan
        dirs = {each for move in plan.moves for each in move.added} | {each.broker_id for each in plan.log_dir_moves}
        begun_s = self._pace.monotonic()
        reported_s, begun_bytes, reported = begun_s, -1, None
        changed_s, last = begun_s, None
        while True:
            seen = self._attempt(lambda: self._round(execution, sizes, dirs))
            progress = execution.progress(seen)
            now_s = self._pace.monotonic()
            begun_bytes = progress.moved_bytes if begun_bytes < 0 else begun_bytes
            is_over = execution.is_over or bool(execution.foreign)
            if progress != reported and (is_over or reported is None or now_s - reported_s >= PROGRESS_S):
                line = progress_line(progress, progress.moved_bytes - begun_bytes, now_s - begun_s)
                self._report(line)
                reported_s, reported = now_s, progress
            if is_over:
                return seen
            if progress != last:
                changed_s, last = now_s, progress
            elif now_s - changed_s >= STALL_S:
                changed_s = now_s
                self._report(stall_line(execution.waiting_for_brokers(seen), STALL_S))
            self._pace.sleep(POLL_S)

    def _round(
        self, execution: PlanExecution, sizes: Mapping[TopicPartition, int], dirs: Collection[int]
    ) -> ClusterObservation:
        seen = read_observation(self._admin, sizes, dirs, execution.changing_dirs)
        todo = execution.observe(seen)
        self._start(execution, todo.moves)
        self._start_dirs(todo.log_dir_moves)
        return seen

    def _start(self, execution: PlanExecution, moves: Sequence[PartitionMove]) -> None:
        if not moves:
            return
        pinned: dict[int, dict[tuple[str, int], str]] = {}
        for move in moves:
            for broker_id, path in move.log_dirs:
                pinned.setdefault(broker_id, {})[move.key] = path
        for broker_id, paths in pinned.items():
            # A refusal costs evenness only: the broker then chooses a folder itself.
            self._admin.place(broker_id, paths)
        changes_factor = any(len(move.after) != len(move.before) for move in moves)
        refused = self._admin.reassign({move.key: move.after for move in moves}, changes_factor=changes_factor)
        for key, refusal in refused.items():
            execution.refuse(TopicPartition(*key), refusal.message, is_transient=refusal.is_transient)

    def _start_dirs(self, moves: Sequence[LogDirMove]) -> None:
        for move in moves:
            self._admin.place(move.broker_id, {move.key: move.target})

    # -- leaders -----------------------------------------------------------------------------------------------------

    def _elect(self, execution: PlanExecution, sizes: Mapping[TopicPartition, int]) -> dict[str, str]:
        """Elect the preferred leaders of what has moved; return the reasons of those that were not elected."""
        refused: dict[str, str] = {}
        for _ in range(ELECTION_OBSERVATIONS):
            wanted = self._attempt(lambda: execution.elections(read_observation(self._admin, sizes, ())))
            if not wanted:
                return {}
            answers = self._attempt(functools.partial(self._admin.elect_preferred, wanted))
            refused = {f"{topic}-{number}": each.message for (topic, number), each in answers.items()}
            self._pace.sleep(POLL_S)
        return {name: f"its preferred leader was not elected: {reason}" for name, reason in refused.items()}

    # -- throttles ---------------------------------------------------------------------------------------------------

    @contextmanager
    def _throttled(
        self, moves: Sequence[PartitionMove], snapshot: ClusterSnapshot, throttle_bytes: int | None
    ) -> Iterator[None]:
        throttle = ReassignmentThrottle(self._admin, snapshot.brokers, (key.topic for key in snapshot.partitions))
        if throttle_bytes is None:
            yield
            return
        try:
            self._attempt(lambda: throttle.set(moves, throttle_bytes))
            yield
        finally:
            try:
                with self._uninterrupted():
                    throttle.remove()
            except ClientError as error:
                self._report(f"The throttle is still set ({error}); the same command removes it at its end.")

    # -- outages -----------------------------------------------------------------------------------------------------

    def _attempt(self, call: Callable[[], _T]) -> _T:
        """Call until the cluster answers, at most OUTAGE_MAX_S after the first failure."""
        failed_s: float | None = None
        while True:
            try:
                with self._uninterrupted():
                    return call()
            except (BrokerConnectionError, RequestTimeoutError, BrokerError) as error:
                if isinstance(error, BrokerError) and not error.retriable:
                    raise
                now_s = self._pace.monotonic()
                if failed_s is None:
                    failed_s = now_s
                    self._report(f"No answer ({error}); the moves go on in the brokers. Trying again.")
                elif now_s - failed_s > OUTAGE_MAX_S:
                    raise
            self._pace.sleep(POLL_S)


def _as_moves(joined: Mapping[TopicPartition, OngoingReassignment]) -> list[PartitionMove]:
    return [PartitionMove(key, running.origin, running.target, 0) for key, running in sorted(joined.items())]
