"""The log below both coordinators: which partitions are here, and what its refusals become."""

from __future__ import annotations

import asyncio

import pytest

from logtier.protocol.errors import ErrorCode, KafkaError
from logtier.protocol.topic_partition import TopicPartition
from logtier.records.batch import Buffer, Record, RecordBatchHeader, build_batch
from logtier.state_topic.log import StateTopicLog
from logtier.state_topic.record_codec import CorruptStateRecordError
from logtier.state_topic.replay import StateReplay
from tests.unit.state_topic.surroundings import MemoryMetadata, MemoryReplicas


class Keys(StateReplay):
    """The keys that were written."""

    def __init__(self) -> None:
        super().__init__("__state-0")
        self.seen: list[bytes | None] = []

    def _apply_control(self, header: RecordBatchHeader, batch: Buffer) -> None:
        self.seen.append(b"a marker")

    def _apply_record(self, record: Record, header: RecordBatchHeader) -> None:
        if record.key == b"bad":
            raise CorruptStateRecordError("malformed")
        self.seen.append(record.key)


class KeyLog(StateTopicLog):
    """Nothing but keys."""

    TOPIC = "__state"
    CONTENTS = "keys"

    def __init__(self) -> None:
        self.metadata = MemoryMetadata()
        self.replicas = MemoryReplicas(self.metadata)
        super().__init__(self.replicas, self.metadata, 1000)

    @staticmethod
    def _described(name: str) -> str:
        return f"key {name}"

    def write(self, *keys: bytes, told: dict[ErrorCode, ErrorCode] | None = None) -> int:
        batch = build_batch([Record(key, b"", 0) for key in keys])
        return asyncio.run(self._append(0, batch) if told is None else self._append(0, batch, errors=told))

    def read(self) -> list[bytes | None] | None:
        replay = Keys()
        return replay.seen if asyncio.run(self._read(0, replay)) else None


@pytest.fixture
def log() -> KeyLog:
    made = KeyLog()
    made.metadata.add("__state", 1)
    return made


def code_of(log: KeyLog) -> ErrorCode:
    try:
        log.active_partition_of("k")
    except KafkaError as error:
        return error.code
    return ErrorCode.none


def test_a_partition_is_found_loaded_and_forgotten() -> None:
    log = KeyLog()
    assert code_of(log) is ErrorCode.not_coordinator, "no topic yet"
    log.metadata.add("__state", 1)
    assert code_of(log) is ErrorCode.not_coordinator, "not noticed yet"
    assert log.new_partitions() == [0]
    assert (code_of(log), log.is_loading) == (ErrorCode.coordinator_load_in_progress, True)
    assert log.read() == []
    assert (code_of(log), log.is_loading, log.is_active(0)) == (ErrorCode.none, False, True)
    assert log.new_partitions() == []
    log.forget_all()
    assert log.new_partitions() == [0]


def test_what_was_written_is_read_in_its_order_but_for_records_that_cannot_be(log: KeyLog) -> None:
    assert [log.write(b"a", b"b"), log.write(b"bad", b"c")] == [0, 2]
    assert log.read() == [b"a", b"b", b"c"]


def test_a_damaged_log_is_not_half_used(log: KeyLog, caplog: pytest.LogCaptureFixture) -> None:
    log.write(b"a")
    log.replicas.log(TopicPartition("__state", 0)).stored.append(b"damaged")
    assert log.read() is None
    assert code_of(log) is ErrorCode.coordinator_not_available
    assert "__state-0 cannot be loaded, its keys are not available" in caplog.text


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (KafkaError(ErrorCode.request_timed_out, "slow"), ErrorCode.coordinator_not_available),
        (KafkaError(ErrorCode.not_leader_or_follower, "moved"), ErrorCode.not_coordinator),
        (KafkaError(ErrorCode.message_too_large, "large"), ErrorCode.unknown_server_error),
        (KafkaError(ErrorCode.invalid_producer_epoch, "fenced"), ErrorCode.invalid_producer_epoch),
        (OSError("no space left"), ErrorCode.not_coordinator),
    ],
)
def test_a_refused_write_has_a_code_that_clients_of_coordinators_know(
    log: KeyLog, error: Exception, code: ErrorCode
) -> None:
    log.replicas.error = error
    with pytest.raises(KafkaError) as refused:
        log.write(b"a")
    assert refused.value.code is code


def test_a_write_may_have_codes_of_its_own(log: KeyLog) -> None:
    log.replicas.error = KafkaError(ErrorCode.message_too_large, "large")
    with pytest.raises(KafkaError) as refused:
        log.write(b"a", told={ErrorCode.message_too_large: ErrorCode.invalid_commit_offset_size})
    assert refused.value.code is ErrorCode.invalid_commit_offset_size
