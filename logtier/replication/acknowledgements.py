"""When appends and deletions may be acknowledged: on the device, and at the followers."""

from collections.abc import Coroutine, Sequence
from typing import Any, TypeAlias

from headwater.logtier.log.log import AppendInfo
from headwater.logtier.protocol.errors import ErrorCode, KafkaError
from headwater.logtier.protocol.topic_partition import TopicPartition
from headwater.logtier.replication.delayed_replication import DelayedReplication, Outcome
from headwater.logtier.replication.flush_wait import wait_flushed
from headwater.logtier.replication.local_replicas import LocalReplicas
from headwater.logtier.replication.purgatory import CallLater, Purgatory

Results: TypeAlias = list[KafkaError | None]
"""The errors of several waits in their order; None where the wait succeeded."""

_REASONS = {
    ErrorCode.request_timed_out: "the in-sync replicas did not follow in time",
    ErrorCode.not_leader_or_follower: "the leader or its epoch changed during the wait",
    ErrorCode.not_enough_replicas_after_append: "the ISR fell below min.insync.replicas after the append",
}


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
    ) -> Coroutine[Any, Any, Results] | None:
        """Return a coroutine that waits for appends just made; None if all can be acknowledged at once.

        Args:
            acks: With -1 each append waits until the high watermark has passed it, otherwise only for its sync.
        """
        waits = [(key, self._replicated(key, info)) for key, info in appends] if acks == -1 else []
        if all(outcome() == ErrorCode.none for _, outcome in waits) and all(info.flush is None for _, info in appends):
            return None
        return self._acknowledged(appends, waits, timeout_ms)

    async def _acknowledged(
        self,
        appends: Sequence[tuple[TopicPartition, AppendInfo]],
        waits: Sequence[tuple[TopicPartition, Outcome]],
        timeout_ms: int,
    ) -> Results:
        operation = DelayedReplication(waits)
        watch = None
        if not operation.is_complete:
            watch = self._appends.watch(operation, operation.partitions, max(0, timeout_ms) / 1000)
        try:
            # Both waits run at the same time: the followers fetch while the device syncs.
            results: Results = [None if info.flush is None else await wait_flushed(info.flush) for _, info in appends]
            codes = operation.outcomes if watch is None else await operation.future
        finally:
            if watch is not None:
                watch.forget()
        for place, code in enumerate(codes):
            results[place] = results[place] or self._error(appends[place][0], code)
        return results

    def of_deletion(
        self, topic_partition: TopicPartition, offset: int, timeout_ms: int
    ) -> Coroutine[Any, Any, KafkaError | None] | None:
        """Return a coroutine that waits until every live replica's log starts at `offset`; None if each one does."""
        outcome = self._deleted(topic_partition, offset)
        if outcome() == ErrorCode.none:
            return None
        return self._deletion(topic_partition, outcome, timeout_ms)

    async def _deletion(self, topic_partition: TopicPartition, outcome: Outcome, timeout_ms: int) -> KafkaError | None:
        operation = DelayedReplication([(topic_partition, outcome)])
        if operation.is_complete:
            return self._error(topic_partition, operation.outcomes[0])
        watch = self._deletions.watch(operation, operation.partitions, max(0, timeout_ms) / 1000)
        try:
            return self._error(topic_partition, (await operation.future)[0])
        finally:
            watch.forget()

    def _replicated(self, topic_partition: TopicPartition, info: AppendInfo) -> Outcome:
        partition = self._replicas.online.get(topic_partition)
        leader_epoch = -1 if partition is None else partition.leader_epoch

        def outcome() -> ErrorCode | None:
            if partition is None or self._replicas.online.get(topic_partition) is not partition:
                return self._replicas.refusal(topic_partition).code
            return partition.acknowledgement(info.last_offset, leader_epoch)

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

    @staticmethod
    def _error(topic_partition: TopicPartition, code: ErrorCode) -> KafkaError | None:
        if code == ErrorCode.none:
            return None
        return KafkaError(code, f"{topic_partition}: {_REASONS.get(code, 'the replica is not available any more')}")
