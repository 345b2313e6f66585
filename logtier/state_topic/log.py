"""The log of a coordinator's topic: its partitions on this broker with their state, and all writes to them."""

import asyncio
import contextlib
import functools
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator, Mapping, Set
from typing import Any, ClassVar, Final, Protocol, TypeVar

from headwater.logtier.log.producers.producer_state import Verification
from headwater.logtier.metadata.image import MetadataDelta, MetadataImage
from headwater.logtier.protocol.errors import ErrorCode, KafkaError
from headwater.logtier.protocol.topic_partition import TopicPartition
from headwater.logtier.records.batch import Buffer, CorruptRecordsError
from headwater.logtier.state_topic.replay import StateReplay
from headwater.logtier.state_topic.topic import partition_for
from headwater.logtier.state_topic.turns import Turns
from headwater.logtier.state_topic.writes import Applied, LedPartition, PartitionState, Refused, StateWrite, Wait

logger = logging.getLogger(__name__)

Answer = TypeVar("Answer")

#: Maximum number of tombstones per batch, which keeps batches of expiry far below max.message.bytes.
TOMBSTONES_PER_BATCH: Final = 500

#: Maximum time that a stop waits for writes that are not replicated.
FINISH_MS_MAX: Final = 5_000

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


class UndecidedWriteError(KafkaError):
    """A write is in the log and was not replicated in time: it may take effect yet.

    It stays in the order of its partition's writes: it is applied when the high watermark has passed it, or refused
    when this broker leads the partition no longer.
    """


class _Log(Protocol):
    @property
    def log_end_offset(self) -> int: ...

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
        """Append a batch; the result has `first_offset`, `last_offset` and `flush`."""

    def commitment(self, topic_partition: TopicPartition, last_offset: int, flush: Any = None, /) -> Wait | None:
        """Return what waits until the log is committed to an offset, however long; None if it is."""


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

    A subclass holds the state and encodes the records. Invariant: only batches below the high watermark change the
    state, in log order, so that the live state equals a replay of the log, even if the caller of a write was cancelled
    or has given up; a partition serves only after the high watermark has passed the end of its load. Only the
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
        #: Turns of the loading: one partition is read at a time.
        self.turns = Turns()
        #: To be held by what follows a load: one partition at a time.
        self.beginning = asyncio.Lock()
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

    async def load_ended(self, name: str, limit_s: float) -> None:
        """Wait until the state of a name is being loaded no longer, for whatever reason, or the time is over."""
        led = self._partitions.get(self.partition_of(name))
        if led is not None and not led.settled.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(limit_s):
                    await led.settled.wait()

    # ---- which partitions ----

    def is_active(self, partition: int) -> bool:
        """Whether the state of a partition is loaded."""
        return self._has_state(partition, PartitionState.ACTIVE)

    def is_to_be_loaded(self, partition: int) -> bool:
        """Whether a partition is led here, and its load has not begun."""
        return self._has_state(partition, PartitionState.LOADING)

    def is_loading(self, partition: int) -> bool:
        """Whether a partition is led here, not loaded and not failed."""
        led = self._partitions.get(partition)
        return led is not None and led.state not in (PartitionState.ACTIVE, PartitionState.FAILED)

    def has_failed(self, partition: int) -> bool:
        """Whether a partition is led here and could not be loaded."""
        return self._has_state(partition, PartitionState.FAILED)

    def _has_state(self, partition: int, state: PartitionState) -> bool:
        led = self._partitions.get(partition)
        return led is not None and led.state is state

    def check_all_loaded(self) -> None:
        """Check that the state of all partitions is here, for requests that list it.

        Partitions that could not be loaded are left out, as in Kafka.

        Raises:
            KafkaError: coordinator_load_in_progress: a partition is to be read, or waits for the high watermark.
        """
        for partition in self._partitions:
            if self.is_loading(partition):
                raise KafkaError(ErrorCode.coordinator_load_in_progress, f"{self.TOPIC}-{partition} is being loaded")

    def leader_epoch(self, partition: int) -> int:
        """Return the epoch in which this broker leads a partition; -1 if it does not."""
        led = self._partitions.get(partition)
        return -1 if led is None else led.leader_epoch

    def new_partitions(self) -> list[int]:
        """Return the partitions led here since the last call; they count as loading from now on."""
        found = [each for each in self._replicas.leader_partitions(self.TOPIC) if each not in self._partitions]
        self._partitions.update((each, LedPartition(self._present_epoch(each))) for each in found)
        return found

    def lost_partitions(self) -> list[int]:
        """Return the partitions that this broker no longer leads in their epoch, to be resigned."""
        led = set(self._replicas.leader_partitions(self.TOPIC))
        return [
            partition
            for partition, held in self._partitions.items()
            if partition not in led or held.leader_epoch != self._present_epoch(partition)
        ]

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
            led.enter(PartitionState.FAILED)

    def retry(self, partition: int) -> bool:
        """Mark a failed partition as loading again; False if it is no longer led here."""
        led = self._partitions.get(partition)
        if led is None or led.state is not PartitionState.FAILED:
            return False
        led.enter(PartitionState.LOADING)
        return True

    async def _read(
        self,
        partition: int,
        replay: StateReplay,
        adopt: Callable[[], None],
        restoring: Iterable[None] = (),
    ) -> Wait | None:
        """Read a partition's log to its end into `replay`, and make the partition active.

        A leader may have records that are not committed yet, which its predecessor may have acknowledged: the
        partition becomes active when the high watermark has passed the end of the log.

        Args:
            adopt: Takes over the replay, when the partition becomes active; not called if the load fails or the
                partition is resigned.
            restoring: Steps that process the replay before the partition is active; other tasks run between them.

        Returns:
            The rest of the load, which waits for the high watermark and raises nothing; None if the load has ended.
        """
        key = TopicPartition(self.TOPIC, partition)
        led = self._partitions[partition]
        led.enter(PartitionState.READING)
        try:
            log = self._replicas.log(key)
            for batch in log.batches():
                for _ in replay.applying(batch):
                    await self.turns.step()
                await self.turns.step()
                if self._partitions.get(partition) is not led:
                    return None
            end_offset = log.log_end_offset
        except (KafkaError, OSError, CorruptRecordsError) as error:
            logger.error("%s cannot be loaded, its %s are not available: %s", key, self.CONTENTS, error)
            led.enter(PartitionState.FAILED)
            return None
        for _ in restoring:
            await self.turns.step()
            if self._partitions.get(partition) is not led:
                return None
        commitment = self._replicas.commitment(key, end_offset - 1)
        if commitment is not None:
            led.enter(PartitionState.WAITING)
            return functools.partial(self._adopt_when_committed, key, led, commitment, adopt)
        led.enter(PartitionState.ACTIVE)
        adopt()
        return None

    async def _adopt_when_committed(
        self, key: TopicPartition, led: LedPartition, commitment: Wait, adopt: Callable[[], None]
    ) -> None:
        try:
            await commitment()
        except KafkaError as error:
            if self._partitions.get(key.partition) is led:
                logger.warning("%s cannot be loaded, its %s are not available: %s", key, self.CONTENTS, error)
                led.enter(PartitionState.FAILED)
            return
        if self._partitions.get(key.partition) is not led:
            return
        led.enter(PartitionState.ACTIVE)
        try:
            adopt()
        except Exception:
            logger.exception("%s cannot be loaded", key)
            led.enter(PartitionState.FAILED)

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
        has_timeout: bool = True,
    ) -> int:
        """Append one batch to the partition of `name`, apply it, and return the offset of its first record.

        The batch is appended before other tasks run. From then on it is processed even if the caller is cancelled:
        `applied` is called in log order when it is replicated, `refused` when it cannot be or this broker leads the
        partition no longer; one of them, once.

        Args:
            has_timeout: Whether to give up after a time; the write goes on.

        Raises:
            UndecidedWriteError: The time is over, and the write is neither applied nor refused.
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
                commitment = self._replicas.commitment(key, info.last_offset, info.flush)
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
        task = led.add(StateWrite(name, info.first_offset, applied, refused, answer), commitment)
        if task is not None:
            self._keep(task)
            if has_timeout:
                await asyncio.wait([answer], timeout=self._timeout_ms / 1000)
                if not answer.done():
                    code = ErrorCode.request_timed_out
                    reason = f"{key}: the in-sync replicas did not follow within {self._timeout_ms} ms"
                    raise UndecidedWriteError(errors.get(code, code), reason)
        try:
            return await asyncio.shield(answer)
        except KafkaError as error:
            raise KafkaError(errors.get(error.code, error.code), error.message) from error

    async def to_its_end(self, work: Coroutine[Any, Any, Answer]) -> Answer:
        """Run work of several writes; it continues even if the caller is cancelled or gives up.

        Raises:
            UndecidedWriteError: The time is over.
        """
        task = asyncio.get_running_loop().create_task(work)
        self._keep(task)
        await asyncio.wait([task], timeout=self._timeout_ms / 1000)
        if not task.done():
            reason = f"writes to {self.TOPIC} were not replicated within {self._timeout_ms} ms"
            raise UndecidedWriteError(ErrorCode.coordinator_not_available, reason)
        return task.result()

    async def written(self, name: str) -> None:
        """Wait until no write of this group or id is running.

        Raises:
            KafkaError: coordinator_not_available if that takes too long.
        """
        led = self._partitions.get(self.partition_of(name))
        if led is None:
            return
        try:
            async with asyncio.timeout(self._timeout_ms / 1000):
                await led.written(name)
        except TimeoutError:
            reason = f"{self._described(name)}: a write was not replicated within {self._timeout_ms} ms"
            raise KafkaError(ErrorCode.coordinator_not_available, reason) from None

    async def written_so_far(self) -> bool:
        """Wait for the writes running now, and return whether all have ended in time; further ones may follow."""
        if not self._tasks:
            return True
        _, unfinished = await asyncio.wait(list(self._tasks), timeout=self._timeout_ms / 1000)
        return not unfinished

    async def finish_writes(self) -> None:
        """Reject further writes, and wait a while for the running ones; the log decides about the others."""
        self._is_closed = True
        try:
            async with asyncio.timeout(min(self._timeout_ms, FINISH_MS_MAX) / 1000):
                while self._tasks:
                    await asyncio.wait(list(self._tasks))
        except TimeoutError:
            for led in self._partitions.values():
                led.resign(KafkaError(ErrorCode.coordinator_not_available, "the broker is being stopped"))
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def _keep(self, task: asyncio.Task[Any]) -> None:
        self._tasks.add(task)
        task.add_done_callback(functools.partial(_ended, self._tasks))


def _ended(tasks: set[asyncio.Task[Any]], task: asyncio.Task[Any]) -> None:
    tasks.discard(task)
    if not task.cancelled():
        task.exception()  # marked as retrieved; the caller, if not cancelled, gets it as well
