"""Offsets that producers commit in transactions (KIP-98, KIP-447)."""

from collections.abc import Callable, Mapping
from typing import Final

from headwater.logtier.group.persistence.offsets import CommittedOffset
from headwater.logtier.group.persistence.offsets_topic import OFFSETS_TOPIC
from headwater.logtier.group.persistence.state_log import GroupStateLog
from headwater.logtier.group.registry import GroupRegistry
from headwater.logtier.log.producers.producer_state import Verification
from headwater.logtier.protocol.errors import ErrorCode, KafkaError
from headwater.logtier.protocol.topic_partition import TopicPartition
from headwater.logtier.runtime.clock import Clock

#: The log's strings have int16 lengths.
GROUP_ID_BYTES_MAX: Final = 32_000


class TransactionalOffsets:
    """The group coordinator's part in transactions: commits that take effect with their transaction's marker."""

    def __init__(
        self,
        clock: Clock,
        log: GroupStateLog,
        groups: GroupRegistry,
        availability: Callable[[str], ErrorCode],
    ) -> None:
        self._clock = clock
        self._log = log
        self._groups = groups
        self._availability = availability

    async def commit(
        self,
        group_id: str,
        *,
        member_id: str,
        group_instance_id: str | None,
        generation_id: int,
        producer_id: int,
        producer_epoch: int,
        commits: Mapping[TopicPartition, CommittedOffset],
        verification: Verification | None,
    ) -> None:
        """Commit offsets in an open transaction, all or none. Return when they are in the log.

        Args:
            verification: Proof that the transaction includes the group's partition of the log, if new there.

        Raises:
            KafkaError: the error of every partition of the request.
        """
        error = self._availability(group_id)
        if error is not ErrorCode.none:
            raise KafkaError(error)
        group = self._groups.get(group_id)
        if group is not None:
            group.check_offset_commit(
                member_id, group_instance_id, generation_id, self._clock.monotonic_ms(), is_transactional=True
            )
        elif generation_id >= 0:
            raise KafkaError(ErrorCode.illegal_generation, f"group {group_id} does not exist")
        elif len(group_id.encode()) > GROUP_ID_BYTES_MAX:
            raise KafkaError(ErrorCode.invalid_group_id, f"a group id has at most {GROUP_ID_BYTES_MAX} bytes")
        if not commits:
            return
        await self._log.write_transactional_offsets(
            group_id, producer_id, producer_epoch, commits, self._clock.now_ms(), verification
        )

    def marker_written(
        self, topic_partition: TopicPartition, producer_id: int, marker_offset: int, committed: bool
    ) -> None:
        """Apply or drop a transaction's commits after the append of its marker."""
        if topic_partition.topic == OFFSETS_TOPIC:
            self._log.end_transaction(topic_partition.partition, producer_id, marker_offset, committed=committed)

    def is_pending(self, group_id: str, topic_partition: TopicPartition) -> bool:
        """Whether an open transaction has a commit of a group for a partition."""
        return self._log.pending.has(group_id, topic_partition)
