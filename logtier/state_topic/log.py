"""The log of a coordinator's topic: which of its partitions are here and loaded, and every write to them."""

import asyncio
import functools
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from typing import Any, ClassVar, Final, Protocol, TypeVar

from headwater.logtier.log.producers.producer_state import Verification
from headwater.logtier.metadata.image import MetadataDelta, MetadataImage
from headwater.logtier.protocol.errors import ErrorCode, KafkaError
from headwater.logtier.protocol.topic_partition import TopicPartition
from headwater.logtier.records.batch import Buffer, CorruptRecordsError
from headwater.logtier.state_topic.replay import StateReplay
from headwater.logtier.state_topic.topic import partition_for
from headwater.logtier.state_topic.turns import Turns
from headwater.logtier.state_topic.writes import Applied, LedPartition, PartitionState, Refused, StateWrite

logger = logging.getLogger(__name__)

Answer = TypeVar("Answer")

#: Most tombstones of one batch: keeps expiry far below max.message.bytes, whatever the lengths of names.
TOMBSTONES_PER_BATCH: Final = 500

#: What a client of a coordinator is told when its log refuses a write.
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
    """What the log needs of the replica manager."""

    def leader_partitions(self, topic: str) -> list[int]:
        """Partitions of a topic that this broker leads."""

    def log(self, topic_partition: TopicPartition, /) -> _Log:
        """The local log of a partition."""

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
        """Append. What is returned has `first_offset`, and goes into `replication`."""

    def replication(
        self, topic_partition: TopicPartition, info: Any, timeout_ms: int, /
    ) -> Coroutine[Any, Any, None] | None:
        """What waits until all in-sync replicas have an append; None: they have it. Of one partition in log order."""


class MetadataSource(Protocol):
    """What a coordinator reads of the metadata cache."""

    @property
    def image(self) -> MetadataImage:
        """The cluster as it is known now."""


class Metadata(MetadataSource, Protocol):
    """The metadata cache, as far as a coordinator needs it."""

    def subscribe(self, callback: Callable[[MetadataDelta], None], /) -> None:
        """Call back with every change."""


class StateTopicLog(ABC):
    """The partitions of one coordinator's topic that this broker leads, each in one leader epoch.

    A subclass holds the state and says what is written. Invariant: it changes the state only by what is in the log, in
    its order, so the live state equals the log's replay, whoever asked for a write and has gone. Only the coordinator
    uses it.
    """

    #: The topic.
    TOPIC: ClassVar[str]
    #: What its partitions keep, as the log names it.
    CONTENTS: ClassVar[str]

    def __init__(self, replicas: StateTopicReplicas, metadata: MetadataSource, timeout_ms: int) -> None:
        self._replicas = replicas
        self._metadata = metadata
        self._timeout_ms = timeout_ms
        self._partitions: dict[int, LedPartition] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        #: Of the loading: one partition is loaded at a time.
        self.turns = Turns()
        self._is_closed = False

    @staticmethod
    @abstractmethod
    def _described(name: str) -> str:
        """A group or an id, as messages name it."""

    def partition_of(self, name: str) -> int:
        """The partition of a name.

        Raises:
            KafkaError: not_coordinator, if the topic does not exist.
        """
        topic = self._metadata.image.topic(self.TOPIC)
        if topic is None:
            raise KafkaError(ErrorCode.not_coordinator, f"{self.TOPIC} does not exist yet")
        return partition_for(name, len(topic.partitions))

    def active_partition_of(self, name: str) -> int:
        """The partition of a name, if its state is loaded here.

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
        """Whether a partition is here, and neither loaded nor found to be damaged."""
        return self._has_state(partition, PartitionState.LOADING)

    def has_failed(self, partition: int) -> bool:
        """Whether a partition is here and could not be loaded."""
        return self._has_state(partition, PartitionState.FAILED)

    def _has_state(self, partition: int, state: PartitionState) -> bool:
        led = self._partitions.get(partition)
        return led is not None and led.state is state

    @property
    def is_loading(self) -> bool:
        """Whether some of the state is still being read."""
        return any(led.state is PartitionState.LOADING for led in self._partitions.values())

    def leader_epoch(self, partition: int) -> int:
        """The epoch in which this broker leads a partition whose state is here; -1 if it does not."""
        led = self._partitions.get(partition)
        return -1 if led is None else led.leader_epoch

    def new_partitions(self) -> list[int]:
        """Partitions this broker leads since the last call; they count as loading from now on."""
        found = [each for each in self._replicas.leader_partitions(self.TOPIC) if each not in self._partitions]
        self._partitions.update((each, LedPartition(self._present_epoch(each))) for each in found)
        return found

    def lost_partitions(self) -> list[int]:
        """Partitions that are here and that this broker leads no longer, or in another epoch: to be resigned."""
        led = set(self._replicas.leader_partitions(self.TOPIC))
        return [
            partition
            for partition, held in self._partitions.items()
            if partition not in led or held.leader_epoch != self._present_epoch(partition)
        ]

    def resign(self, partition: int) -> None:
        """This broker leads a partition no longer: whoever waits for a write is told so, and its state is dropped."""
        led = self._partitions.pop(partition, None)
        if led is not None:
            # First: what is taken back must not come after the state is gone.
            led.resign(KafkaError(ErrorCode.not_coordinator, f"{self.TOPIC}-{partition} has another leader or epoch"))
            self._drop(partition)

    @abstractmethod
    def _drop(self, partition: int) -> None:
        """Forget the state of a partition."""

    def forget_all(self) -> None:
        """The topic is gone, and with it all state."""
        partitions, self._partitions = self._partitions, {}
        for led in partitions.values():
            led.resign(KafkaError(ErrorCode.not_coordinator, f"{self.TOPIC} was deleted"))

    def _present_epoch(self, partition: int) -> int:
        topic = self._metadata.image.topic(self.TOPIC)
        is_there = topic is not None and partition < len(topic.partitions)
        return topic.partitions[partition].leader_epoch if topic is not None and is_there else -1

    # ---- loading ----

    def fail(self, partition: int) -> None:
        """A partition cannot be loaded at present."""
        led = self._partitions.get(partition)
        if led is not None:
            led.state = PartitionState.FAILED

    def retry(self, partition: int) -> bool:
        """Whether a partition that could not be loaded is still here; it counts as loading from now on."""
        led = self._partitions.get(partition)
        if led is None or led.state is not PartitionState.FAILED:
            return False
        led.state = PartitionState.LOADING
        return True

    async def _read(self, partition: int, replay: StateReplay, restoring: Iterable[None] = ()) -> bool:
        """Read a partition's log into `replay`, after which it is active; whether it is.

        If not, nothing of it is to be used: it could not be read to its end, and what was promised there would silently
        be forgotten; or it was resigned meanwhile. If it is, the caller takes the state over before others have a turn.

        Args:
            restoring: What is to be made of the replay before the partition is active, in steps; others have turns
                between them.
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
        """Append one batch to the partition of `name`, apply it, answer; the offset of its first record.

        The batch is appended before anybody else has a turn. From then on it takes its course even if the caller is
        cancelled: `applied` is called in the log's order once it is replicated, or else `refused`, once.

        Raises:
            KafkaError: with the code that `errors` has for the log's; coordinator_not_available after `finish_writes`.
        """
        try:
            if self._is_closed:
                raise KafkaError(ErrorCode.coordinator_not_available, "the broker is being stopped")
            partition = self.active_partition_of(name)
            led = self._partitions[partition]
            key = TopicPartition(self.TOPIC, partition)
            if led.leader_epoch != self._present_epoch(partition):
                # It is about to be loaded anew: who led it in between may have written what is not known here.
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
        """Do what consists of several writes; it goes on even if the caller is cancelled."""
        task = asyncio.get_running_loop().create_task(work)
        self._keep(task)
        return await asyncio.shield(task)

    async def written(self, name: str) -> None:
        """Wait until no write of this group or id is under way."""
        led = self._partitions.get(self.partition_of(name))
        if led is not None:
            await led.written(name)

    async def written_so_far(self) -> None:
        """Wait for the writes that are under way now; others may come meanwhile."""
        if self._tasks:
            await asyncio.wait(list(self._tasks))

    async def finish_writes(self) -> None:
        """Take no more writes, and wait until none is under way."""
        self._is_closed = True
        while self._tasks:
            await asyncio.wait(list(self._tasks))

    def _keep(self, task: asyncio.Task[Any]) -> None:
        self._tasks.add(task)
        task.add_done_callback(functools.partial(_ended, self._tasks))


def _ended(tasks: set[asyncio.Task[Any]], task: asyncio.Task[Any]) -> None:
    tasks.discard(task)
    if not task.cancelled():
        task.exception()  # told to whoever asked, if he is still there
