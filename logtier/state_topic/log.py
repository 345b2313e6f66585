"""The log of a coordinator's topic: its partitions on this broker with their state, and all writes to them."""

import asyncio
import functools
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator, Mapping, Set
from typing import Any, ClassVar, Final, Protocol, TypeVar

from headwater.logtier.log.producers.producer_state import Verification
from headwater.logtier.metadata.image import MetadataDelta, MetadataImage
from headwater.logtier.metadata.topic_nodes import NO_BROKER
from headwater.logtier.protocol.errors import ErrorCode, KafkaError
from headwater.logtier.protocol.topic_partition import TopicPartition
from headwater.logtier.records.batch import Buffer, CorruptRecordsError
from headwater.logtier.state_topic.replay import StateReplay
from headwater.logtier.state_topic.topic import partition_for
from headwater.logtier.state_topic.turns import Turns
from headwater.logtier.state_topic.writes import Applied, LedPartition, PartitionState, Refused, StateWrite

logger = logging.getLogger(__name__)

Answer = TypeVar("Answer")

#: Maximum number of tombstones per batch, which keeps batches of expiry far below max.message.bytes.
TOMBSTONES_PER_BATCH: Final = 500

#: Error codes for clients of a coordinator by the error code of a rejected write.
WRITE_ERRORS: Final[Mapping[ErrorCode, ErrorCode]] = {
    ErrorCode.unknown_topic_or_partition: ErrorCode.coordinator_not_available,
    ErrorCode.not_enough_replicas: ErrorCode.coordinator_not_available,
    ErrorCode.not_enough_replicas_after_append: ErrorCode.coordinator_not_available,
    ErrorCode.request_timed_out: ErrorCode.coordinator_not_available,
    ErrorCode.not_leader_or_follower: ErrorCode.not_coordinator,
    ErrorCode.kafka_storage_error: ErrorCode.not_coordinator,
    ErrorCode.message_too_large: ErrorCode.unknown_server_error,
    ErrorCode.record_list_too_large: ErrorCode.unknown_server_error,
}


class _Log(Protocol):
    def batches(self) -> Iterator[Buffer]: ...


class StateTopicReplicas(Protocol):
    """The functions of the replica manager used by the log."""

    def leader_partitions(self, topic: str) -> list[int]:
        """Return the partitions of a topic that this broker leads."""

    def log(self, topic_partition: TopicPartition, /) -> _Log:
        """Return the local log of a partition."""

    def append(
        self,
        topic_partition: TopicPartition,
        records: bytes,
        /,
        *,
        acks: int,
        verification: Verification | None = None,
        is_coordinator: bool = False,
    ) -> Any:
        """Append a batch; the result has `first_offset` and is passed to `replication`."""

    def replication(
        self, topic_partition: TopicPartition, info: Any, timeout_ms: int, /
    ) -> Coroutine[Any, Any, None] | None:
        """Return a coroutine that waits until an append is replicated, in log order; None if it is."""


class MetadataSource(Protocol):
    """The part of the metadata cache that a coordinator reads."""

    @property
    def image(self) -> MetadataImage:
        """The present image of the cluster."""


class Metadata(MetadataSource, Protocol):
    """The functions of the metadata cache used by a coordinator."""

    def subscribe(self, callback: Callable[[MetadataDelta], None], /) -> None:
        """Call `callback` with every change."""


class StateTopicLog(ABC):
    """The partitions of one coordinator's topic that this broker leads, each in one leader epoch.

    A subclass holds the state and encodes the records. Invariant: only batches in the log change the state, in log
    order, so that the live state equals a replay of the log, even if the caller of a write was cancelled. Only the
    coordinator uses it.
    """

    #: Name of the topic.
    TOPIC: ClassVar[str]
    #: The content of its partitions, for log messages.
    CONTENTS: ClassVar[str]

    def __init__(self, replicas: StateTopicReplicas, metadata: MetadataSource, timeout_ms: int) -> None:
        self._replicas = replicas
        self._metadata = metadata
        self._timeout_ms = timeout_ms
        self._partitions: dict[int, LedPartition] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        #: Turns of the loading: one partition is loaded at a time.
        self.turns = Turns()
        self._is_closed = False

    @staticmethod
    @abstractmethod
    def _described(name: str) -> str:
        """Describe a group or transactional id for messages."""

    def partition_of(self, name: str) -> int:
        """Return the partition of a name.

        Raises:
            KafkaError: not_coordinator if the topic does not exist.
        """
        topic = self._metadata.image.topic(self.TOPIC)
        if topic is None:
            raise KafkaError(ErrorCode.not_coordinator, f"{self.TOPIC} does not exist yet")
        return partition_for(name, len(topic.partitions))

    def active_partition_of(self, name: str) -> int:
        """Return the partition of a name whose state is loaded.

        Raises:
            KafkaError: not_coordinator, coordinator_load_in_progress, coordinator_not_available (a damaged log).
        """
        partition = self.partition_of(name)
        led = self._partitions.get(partition)
        if led is None:
            raise KafkaError(ErrorCode.not_coordinator, f"this broker does not coordinate {self._described(name)}")
        if led.state is PartitionState.ACTIVE:
            return partition
        if led.state is PartitionState.FAILED:
            raise KafkaError(ErrorCode.coordinator_not_available, f"{self.TOPIC}-{partition} cannot be read")
        raise KafkaError(
            ErrorCode.coordinator_load_in_progress, f"the state of {self._described(name)} is being loaded"
        )

    # ---- which partitions ----

    def is_active(self, partition: int) -> bool:
        """Whether the state of a partition is loaded."""
        return self._has_state(partition, PartitionState.ACTIVE)

    def is_to_be_loaded(self, partition: int) -> bool:
        """Whether a partition is led here, not loaded and not failed."""
        return self._has_state(partition, PartitionState.LOADING)

    def has_failed(self, partition: int) -> bool:
        """Whether a partition is led here and could not be loaded."""
        return self._has_state(partition, PartitionState.FAILED)

    def _has_state(self, partition: int, state: PartitionState) -> bool:
        led = self._partitions.get(partition)
        return led is not None and led.state is state

    @property
    def is_loading(self) -> bool:
        """Whether any partition is being loaded."""
        return any(led.state is PartitionState.LOADING for led in self._partitions.values())

    def leader_epoch(self, partition: int) -> int:
        """Return the epoch in which this broker leads a partition; -1 if it does not."""
        led = self._partitions.get(partition)
        return -1 if led is None else led.leader_epoch

    def new_partitions(self) -> list[int]:
        """Return the partitions led here since the last call; they count as loading from now on."""
        found = [each for each in self._coordinated() if each not in self._partitions]
        self._partitions.update((each, LedPartition(self._present_epoch(each))) for each in found)
        return found

    def lost_partitions(self) -> list[int]:
        """Return the partitions that this broker no longer leads in their epoch, to be resigned."""
        led = set(self._coordinated())
        return [
            partition
            for partition, held in self._partitions.items()
            if partition not in led or held.leader_epoch != self._present_epoch(partition)
        ]

    def _coordinated(self) -> list[int]:
        topic = self._metadata.image.topic(self.TOPIC)
        if topic is None:
            return []
        led = self._replicas.leader_partitions(self.TOPIC)
        return [each for each in led if topic.partitions[each].coordinator != NO_BROKER]

    def resign(self, partitions: Collection[int]) -> None:
        """Refuse the writes under way to partitions that this broker leads no longer, and drop the state of all."""
        resigned = set()
        for partition in partitions:
            led = self._partitions.pop(partition, None)
            if led is not None:
                resigned.add(partition)
                # Before the state is dropped: a refused write takes changes of the state back.
                reason = f"{self.TOPIC}-{partition} has another leader or epoch"
                led.resign(KafkaError(ErrorCode.not_coordinator, reason))
        if resigned:
            self._drop(resigned)

    @abstractmethod
    def _drop(self, partitions: Set[int]) -> None:
        """Forget the state of partitions, in one pass over the state."""

    def forget_all(self) -> None:
        """Remove all state after the deletion of the topic."""
        partitions, self._partitions = self._partitions, {}
        for led in partitions.values():
            led.resign(KafkaError(ErrorCode.not_coordinator, f"{self.TOPIC} was deleted"))

    def _present_epoch(self, partition: int) -> int:
        topic = self._metadata.image.topic(self.TOPIC)
        is_there = topic is not None and partition < len(topic.partitions)
        return topic.partitions[partition].leader_epoch if topic is not None and is_there else -1

    # ---- loading ----

    def fail(self, partition: int) -> None:
        """Mark a partition as failed to load."""
        led = self._partitions.get(partition)
        if led is not None:
            led.state = PartitionState.FAILED

    def retry(self, partition: int) -> bool:
        """Mark a failed partition as loading again; False if it is no longer led here."""
        led = self._partitions.get(partition)
        if led is None or led.state is not PartitionState.FAILED:
            return False
        led.state = PartitionState.LOADING
        return True

    async def _read(self, partition: int, replay: StateReplay, restoring: Iterable[None] = ()) -> bool:
        """Read a partition's log into `replay` and make the partition active; return whether it is.

        If not, the replay must not be used: it is incomplete because of an error, or the partition was resigned
        meanwhile. Otherwise the caller takes over the state before other tasks run.

        Args:
            restoring: Steps that process the replay before the partition is active; other tasks run between them.
        """
        key = TopicPartition(self.TOPIC, partition)
        led = self._partitions[partition]
        try:
            for batch in self._replicas.log(key).batches():
                for _ in replay.applying(batch):
                    await self.turns.step()
                await self.turns.step()
                if self._partitions.get(partition) is not led:
                    return False
        except (KafkaError, OSError, CorruptRecordsError) as error:
            logger.error("%s cannot be loaded, its %s are not available: %s", key, self.CONTENTS, error)
            led.state = PartitionState.FAILED
            return False
        for _ in restoring:
            await self.turns.step()
            if self._partitions.get(partition) is not led:
                return False
        led.state = PartitionState.ACTIVE
        return True

    # ---- writing ----

    async def _write(
        self,
        name: str,
        batch: bytes,
        *,
        applied: Applied,
        refused: Refused = lambda _: None,
        errors: Mapping[ErrorCode, ErrorCode] = WRITE_ERRORS,
        verification: Verification | None = None,
        is_coordinator: bool = False,
    ) -> int:
        """Append one batch to the partition of `name`, apply it, and return the offset of its first record.

        The batch is appended before other tasks run. From then on it is processed even if the caller is cancelled:
        `applied` is called in log order when it is replicated, otherwise `refused`, once.

        Raises:
            KafkaError: With the code that `errors` maps the log's code to; coordinator_not_available after
                `finish_writes`.
        """
        try:
            if self._is_closed:
                raise KafkaError(ErrorCode.coordinator_not_available, "the broker is being stopped")
            partition = self.active_partition_of(name)
            led = self._partitions[partition]
            key = TopicPartition(self.TOPIC, partition)
            if led.leader_epoch != self._present_epoch(partition):
                # The partition will be loaded again: another leader may have written to it meanwhile.
                raise KafkaError(ErrorCode.not_coordinator, f"{key} has another leader or epoch")
            try:
                info = self._replicas.append(
                    key, batch, acks=-1, verification=verification, is_coordinator=is_coordinator
                )
                replication = self._replicas.replication(key, info, self._timeout_ms)
            except OSError as error:
                logger.error("%s cannot be written: %s", key, error)
                code = ErrorCode.kafka_storage_error
                raise KafkaError(errors.get(code, code), f"{key} cannot be written: {error}") from error
            except KafkaError as error:
                raise KafkaError(errors.get(error.code, error.code), error.message) from error
        except KafkaError as refusal:
            refused(refusal)
            raise
        answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        task = led.add(StateWrite(name, info.first_offset, applied, refused, answer), replication)
        if task is not None:
            self._keep(task)
        try:
            return await asyncio.shield(answer)
        except KafkaError as error:
            raise KafkaError(errors.get(error.code, error.code), error.message) from error

    async def to_its_end(self, work: Coroutine[Any, Any, Answer]) -> Answer:
        """Run work of several writes; it continues even if the caller is cancelled."""
        task = asyncio.get_running_loop().create_task(work)
        self._keep(task)
        return await asyncio.shield(task)

    async def written(self, name: str) -> None:
        """Wait until no write of this group or id is running."""
        led = self._partitions.get(self.partition_of(name))
        if led is not None:
            await led.written(name)

    async def written_so_far(self) -> None:
        """Wait for the writes running now; further writes may follow."""
        if self._tasks:
            await asyncio.wait(list(self._tasks))

    async def finish_writes(self) -> None:
        """Reject further writes, and wait for the running ones."""
        self._is_closed = True
        while self._tasks:
            await asyncio.wait(list(self._tasks))

    def _keep(self, task: asyncio.Task[Any]) -> None:
        self._tasks.add(task)
        task.add_done_callback(functools.partial(_ended, self._tasks))


def _ended(tasks: set[asyncio.Task[Any]], task: asyncio.Task[Any]) -> None:
    tasks.discard(task)
    if not task.cancelled():
        task.exception()  # marked as retrieved; the caller, if not cancelled, gets it as well
