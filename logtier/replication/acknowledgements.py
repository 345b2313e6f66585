"""When appends and deletions may be acknowledged: on the device, and at the followers."""

from collections.abc import Callable, Sequence
from typing import TypeAlias

from headwater.logtier.log.durability import FlushRound
from headwater.logtier.log.log import AppendInfo, Log
from headwater.logtier.protocol.errors import ErrorCode, KafkaError
from headwater.logtier.protocol.topic_partition import TopicPartition
from headwater.logtier.replication.delayed_replication import DelayedReplication, Outcome
from headwater.logtier.replication.flush_wait import wait_flushed
from headwater.logtier.replication.local_replicas import LocalReplicas
from headwater.logtier.replication.partition import Partition
from headwater.logtier.replication.purgatory import CallLater, Purgatory

Results: TypeAlias = list[KafkaError | None]
"""The errors of several waits in their order; None where the wait succeeded."""

_REASONS = {
    ErrorCode.request_timed_out: "the in-sync replicas did not follow in time",
    ErrorCode.not_leader_or_follower: "the leader or its epoch changed during the wait",
    ErrorCode.not_enough_replicas_after_append: "the ISR fell below min.insync.replicas after the append",
}


class ReplicationWait:
    """A wait for followers and devices that has not begun; `results` begins it and waits.

    It is no coroutine, so that a request whose client goes before the wait begins leaves nothing behind.
    """

    __slots__ = ("_flushes", "_purgatory", "_timeout_ms", "_waits")

    def __init__(
        self,
        purgatory: Purgatory,
        waits: Sequence[tuple[TopicPartition, Outcome]],
        timeout_ms: int | None,
        flushes: Sequence[FlushRound | None] = (),
    ) -> None:
        """Without `waits` only the `flushes` are awaited; otherwise both have the same length, or no flush is.

        Args:
            timeout_ms: Time limit of the wait for the followers; None for no limit.
        """
        self._purgatory = purgatory
        self._waits = waits
        self._timeout_ms = timeout_ms
        self._flushes = flushes

    async def results(self) -> Results:
        """Wait for the device and the followers at the same time, at most for the timeout."""
        operation = DelayedReplication(self._waits)
        watch = None
        if not operation.is_complete:
            timeout_s = None if self._timeout_ms is None else max(0, self._timeout_ms) / 1000
            watch = self._purgatory.watch(operation, operation.partitions, timeout_s)
        try:
            errors = [None if flush is None else await wait_flushed(flush) for flush in self._flushes]
            has_failed = bool(errors) and all(errors)
            codes = operation.outcomes if watch is None or has_failed else await operation.future
        finally:
            if watch is not None:
                watch.forget()
        results: Results = errors or [None] * len(codes)
        for place, code in enumerate(codes):
            results[place] = results[place] or _error(self._waits[place][0], code)
        return results

    async def first(self) -> None:
        """Wait for the only append, and raise its error."""
        (error,) = await self.results()
        if error is not None:
            raise KafkaError(error.code, error.message)


class Acknowledgements:
    """Waits for the followers and the device, with a timeout; `check` and `check_deletions` report changes.

    Invariant: a wait belongs to one partition object in one leader epoch: a later leadership may have replaced the
    records that it waits for.
    """

    def __init__(self, replicas: LocalReplicas, call_later: CallLater) -> None:
        self._replicas = replicas
        self._appends = Purgatory(call_later)
        self._deletions = Purgatory(call_later)

    def __len__(self) -> int:
        """Number of waiting requests."""
        return len(self._appends) + len(self._deletions)

    def check(self, topic_partition: TopicPartition) -> None:
        """Check the waiting appends after a change of the high watermark, the ISR or the leadership."""
        self._appends.check(topic_partition)

    def check_deletions(self, topic_partition: TopicPartition) -> None:
        """Check the waiting deletions after a change of the low watermark or the leadership."""
        self._deletions.check(topic_partition)

    def check_soon(self, topic_partition: TopicPartition) -> None:
        """Check all waits in a later turn of the event loop."""
        self._appends.check_soon(topic_partition)
        self._deletions.check_soon(topic_partition)

    def of_appends(
        self, appends: Sequence[tuple[TopicPartition, AppendInfo]], timeout_ms: int, *, acks: int
    ) -> ReplicationWait | None:
        """Return the wait for appends just made; None if all can be acknowledged at once.

        Args:
            acks: With -1 each append waits until the high watermark has passed it, otherwise only for its sync.
        """
        waits = (
            [(key, self._committed(key, info.last_offset, Partition.acknowledgement)) for key, info in appends]
            if acks == -1
            else []
        )
        flushes = [info.flush for _, info in appends]
        if all(outcome() == ErrorCode.none for _, outcome in waits) and all(flush is None for flush in flushes):
            return None
        return ReplicationWait(self._appends, waits, timeout_ms, flushes)

    def of_commitment(
        self, topic_partition: TopicPartition, last_offset: int, flush: FlushRound | None = None
    ) -> ReplicationWait | None:
        """Return the wait until records in the log are committed in the present leader epoch; None if they are.

        It has no timeout, and an ISR below its minimum does not end it: the records may be committed later.
        """
        outcome = self._committed(topic_partition, last_offset, Partition.commitment)
        if outcome() == ErrorCode.none and flush is None:
            return None
        return ReplicationWait(self._appends, [(topic_partition, outcome)], None, [flush])

    def of_deletions(self, deletions: Sequence[tuple[TopicPartition, int]], timeout_ms: int) -> ReplicationWait | None:
        """Return the wait until each partition's live replicas all begin at its offset or later; None if all do."""
        waits = [(key, self._deleted(key, offset)) for key, offset in deletions]
        if all(outcome() == ErrorCode.none for _, outcome in waits):
            return None
        return ReplicationWait(self._deletions, waits, timeout_ms)

    def _committed(
        self,
        topic_partition: TopicPartition,
        last_offset: int,
        outcome_of: Callable[[Partition[Log], int, int], ErrorCode | None],
    ) -> Outcome:
        partition = self._replicas.online.get(topic_partition)
        leader_epoch = -1 if partition is None else partition.leader_epoch

        def outcome() -> ErrorCode | None:
            if partition is None or self._replicas.online.get(topic_partition) is not partition:
                return self._replicas.refusal(topic_partition).code
            return outcome_of(partition, last_offset, leader_epoch)

        return outcome

    def _deleted(self, topic_partition: TopicPartition, offset: int) -> Outcome:
        partition = self._replicas.online.get(topic_partition)
        leader_epoch = -1 if partition is None else partition.leader_epoch

        def outcome() -> ErrorCode | None:
            if partition is None or self._replicas.online.get(topic_partition) is not partition:
                return self._replicas.refusal(topic_partition).code
            if not partition.is_leader or partition.leader_epoch != leader_epoch:
                return ErrorCode.not_leader_or_follower
            return ErrorCode.none if partition.low_watermark >= offset else None

        return outcome


def _error(topic_partition: TopicPartition, code: ErrorCode) -> KafkaError | None:
    if code == ErrorCode.none:
        return None
    return KafkaError(code, f"{topic_partition}: {_REASONS.get(code, 'the replica is not available any more')}")
