"""The log of a coordinator's topic: which of its partitions are here and loaded, and every write to them."""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from enum import Enum, auto
from typing import ClassVar, Final, Protocol

from logtier.log.producer_state import Verification
from logtier.metadata.image import MetadataDelta, MetadataImage
from logtier.protocol.errors import ErrorCode, KafkaError
from logtier.protocol.topic_partition import TopicPartition
from logtier.records.batch import Buffer, CorruptRecordsError
from logtier.state_topic.replay import StateReplay
from logtier.state_topic.topic import partition_for

logger = logging.getLogger(__name__)

#: While a log is loaded, other requests get a turn after so many batches.
BATCHES_PER_TURN: Final = 64
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


class _AppendInfo(Protocol):
    @property
    def first_offset(self) -> int: ...


class _Log(Protocol):
    def batches(self) -> Iterator[Buffer]: ...


class Replicas(Protocol):
    """What the log needs of the replica manager."""

    def leader_partitions(self, topic: str) -> list[int]:
        """Partitions of a topic that this broker leads."""

    def log(self, topic_partition: TopicPartition, /) -> _Log:
        """The local log of a partition."""

    async def append_and_wait(
        self,
        topic_partition: TopicPartition,
        records: bytes,
        timeout_ms: int,
        /,
        *,
        verification: Verification | None = None,
        is_coordinator: bool = False,
    ) -> _AppendInfo:
        """Append with acks=all. Writes of one partition complete in the order they were made."""


class MetadataSource(Protocol):
    """What a coordinator reads of the metadata cache."""

    @property
    def image(self) -> MetadataImage:
        """The cluster as it is known now."""


class Metadata(MetadataSource, Protocol):
    """The metadata cache, as far as a coordinator needs it."""

    def subscribe(self, callback: Callable[[MetadataDelta], None], /) -> None:
        """Call back with every change."""


class _PartitionState(Enum):
    LOADING = auto()
    ACTIVE = auto()
    FAILED = auto()


class StateTopicLog(ABC):
    """The partitions of one coordinator's topic that this broker leads.

    A subclass holds the state and says what is written. Invariant: it changes the state only by what is in the log, in
    its order, so the live state equals the log's replay. Only the coordinator uses it.
    """

    #: The topic.
    TOPIC: ClassVar[str]
    #: What its partitions keep, as the log names it.
    CONTENTS: ClassVar[str]

    def __init__(self, replicas: Replicas, metadata: MetadataSource, timeout_ms: int) -> None:
        self._replicas = replicas
        self._metadata = metadata
        self._timeout_ms = timeout_ms
        self._partitions: dict[int, _PartitionState] = {}

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
        state = self._partitions.get(partition)
        if state is _PartitionState.ACTIVE:
            return partition
        if state is None:
            raise KafkaError(ErrorCode.not_coordinator, f"this broker does not coordinate {self._described(name)}")
        if state is _PartitionState.FAILED:
            raise KafkaError(ErrorCode.coordinator_not_available, f"{self.TOPIC}-{partition} cannot be read")
        raise KafkaError(
            ErrorCode.coordinator_load_in_progress, f"the state of {self._described(name)} is being loaded"
        )

    def is_active(self, partition: int) -> bool:
        """Whether the state of a partition is loaded."""
        return self._partitions.get(partition) is _PartitionState.ACTIVE

    @property
    def is_loading(self) -> bool:
        """Whether some of the state is still being read."""
        return any(state is _PartitionState.LOADING for state in self._partitions.values())

    def new_partitions(self) -> list[int]:
        """Partitions this broker leads since the last call; they count as loading from now on."""
        found = [each for each in self._replicas.leader_partitions(self.TOPIC) if each not in self._partitions]
        self._partitions.update(dict.fromkeys(found, _PartitionState.LOADING))
        return found

    def forget_all(self) -> None:
        """The topic is gone, and with it all state."""
        self._partitions.clear()

    async def _read(self, partition: int, replay: StateReplay) -> bool:
        """Read a partition's log into `replay`, after which it is active; whether it could be read to its end.

        If not, nothing of it is to be used: what was promised at its end would silently be forgotten.
        """
        key = TopicPartition(self.TOPIC, partition)
        try:
            for count, batch in enumerate(self._replicas.log(key).batches(), start=1):
                replay.apply(batch)
                if count % BATCHES_PER_TURN == 0:
                    await asyncio.sleep(0)
        except (KafkaError, OSError, CorruptRecordsError) as error:
            logger.error("%s cannot be loaded, its %s are not available: %s", key, self.CONTENTS, error)
            self._partitions[partition] = _PartitionState.FAILED
            return False
        self._partitions[partition] = _PartitionState.ACTIVE
        return True

    async def _append(
        self,
        partition: int,
        batch: bytes,
        *,
        errors: Mapping[ErrorCode, ErrorCode] = WRITE_ERRORS,
        verification: Verification | None = None,
        is_coordinator: bool = False,
    ) -> int:
        """Append one batch; the offset of its first record.

        Raises:
            KafkaError: with the code that `errors` has for the log's.
        """
        key = TopicPartition(self.TOPIC, partition)
        try:
            info = await self._replicas.append_and_wait(
                key, batch, self._timeout_ms, verification=verification, is_coordinator=is_coordinator
            )
        except OSError as error:
            logger.error("%s cannot be written: %s", key, error)
            code = ErrorCode.kafka_storage_error
            raise KafkaError(errors.get(code, code), f"{key} cannot be written: {error}") from error
        except KafkaError as error:
            raise KafkaError(errors.get(error.code, error.code), error.message) from error
        return info.first_offset
