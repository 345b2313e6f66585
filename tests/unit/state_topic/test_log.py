"""The log below both coordinators: which partitions are here, and what its refusals become."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Coroutine, Set
from typing import Any

import pytest

from headwater.logtier.protocol.errors import ErrorCode, KafkaError
from headwater.logtier.protocol.topic_partition import TopicPartition
from headwater.logtier.records.batch import Buffer, Record, RecordBatchHeader, build_batch
from headwater.logtier.state_topic.loading import StateLoader
from headwater.logtier.state_topic.log import WRITE_ERRORS, StateTopicLog
from headwater.logtier.state_topic.record_codec import CorruptStateRecordError
from headwater.logtier.state_topic.replay import StateReplay
from headwater.logtier.state_topic.turns import STEPS_PER_TURN
from tests.topic_images import with_leader_epoch
from tests.unit.state_topic.surroundings import MemoryMetadata, MemoryReplicas, settle


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
        self.dropped: list[set[int]] = []
        self.applied: list[tuple[bytes, ...]] = []
        self.refused: list[tuple[bytes, ...]] = []

    @staticmethod
    def _described(name: str) -> str:
        return f"key {name}"

    def _drop(self, partitions: Set[int]) -> None:
        self.dropped.append(set(partitions))

    async def write_keys(self, *keys: bytes, told: dict[ErrorCode, ErrorCode] | None = None) -> int:
        return await self._write(
            "k",
            build_batch([Record(key, b"", 0) for key in keys]),
            applied=lambda _: self.applied.append(keys),
            refused=lambda _: self.refused.append(keys),
            errors=WRITE_ERRORS if told is None else told,
        )

    def write(self, *keys: bytes, told: dict[ErrorCode, ErrorCode] | None = None) -> int:
        return asyncio.run(self.write_keys(*keys, told=told))

    def read(self) -> list[bytes | None] | None:
        return asyncio.run(self.read_keys())

    async def read_keys(self) -> list[bytes | None] | None:
        """The keys that the load of partition 0 has taken over, without waiting for the watermark."""
        adopted: list[list[bytes | None]] = []
        replay = Keys()
        rest = await self._read(0, replay, lambda: adopted.append(replay.seen))
        assert rest is None
        return adopted[0] if adopted else None


@pytest.fixture
def log() -> KeyLog:
    made = KeyLog()
    made.metadata.add("__state", 1)
    made.new_partitions()
    made.read()
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
    assert (code_of(log), log.is_loading(0)) == (ErrorCode.coordinator_load_in_progress, True)
    assert log.read() == []
    assert (code_of(log), log.is_loading(0), log.is_active(0)) == (ErrorCode.none, False, True)
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
        (KafkaError(ErrorCode.not_enough_replicas, "few"), ErrorCode.coordinator_not_available),
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


def test_a_write_whose_caller_has_gone_is_applied_all_the_same(log: KeyLog) -> None:
    async def scenario() -> None:
        log.replicas.gate = asyncio.Event()
        writing = asyncio.ensure_future(log.write_keys(b"a"))
        await settle()
        writing.cancel()
        await settle()
        assert (writing.cancelled(), log.applied) == (True, [])
        log.replicas.gate.set()
        await log.finish_writes()
        assert (log.applied, log.refused) == ([(b"a",)], [])

    asyncio.run(scenario())


def test_writes_are_applied_in_the_order_of_the_log_whichever_is_replicated_first(log: KeyLog) -> None:
    async def scenario() -> None:
        gate = log.replicas.gate = asyncio.Event()
        first = asyncio.ensure_future(log.write_keys(b"a"))
        await settle()
        log.replicas.gate = None
        second = asyncio.ensure_future(log.write_keys(b"b"))
        await settle()
        assert (log.applied, second.done()) == ([], False)
        gate.set()
        assert (await first, await second) == (0, 1)
        assert log.applied == [(b"a",), (b"b",)]

    asyncio.run(scenario())


def test_a_write_that_cannot_be_committed_is_refused_once_and_holds_nobody_up(log: KeyLog) -> None:
    async def scenario() -> None:
        log.replicas.gate = asyncio.Event()
        log.replicas.error_at_commitment = KafkaError(ErrorCode.kafka_storage_error, "the disk failed")
        first = asyncio.ensure_future(log.write_keys(b"a"))
        await settle()
        log.replicas.gate.set()
        with pytest.raises(KafkaError) as refused:
            await first
        assert refused.value.code is ErrorCode.not_coordinator
        log.replicas.gate = None
        assert await log.write_keys(b"b") == 1
        assert (log.applied, log.refused) == ([(b"b",)], [(b"a",)])

    asyncio.run(scenario())


def test_a_partition_that_is_resigned_answers_who_waits_and_applies_nothing_more(log: KeyLog) -> None:
    async def scenario() -> None:
        log.replicas.gate = asyncio.Event()
        writing = asyncio.ensure_future(log.write_keys(b"a"))
        await settle()
        assert log.lost_partitions() == []
        log.replicas.elsewhere = {0}
        assert log.lost_partitions() == [0]
        log.resign([0])
        with pytest.raises(KafkaError) as refused:
            await writing
        assert refused.value.code is ErrorCode.not_coordinator
        log.replicas.gate.set()
        await log.finish_writes()
        assert (log.applied, log.refused, log.dropped) == ([], [(b"a",)], [{0}])
        assert code_of(log) is ErrorCode.not_coordinator

    asyncio.run(scenario())


def test_a_partition_is_resigned_and_read_again_when_it_is_led_in_another_epoch(log: KeyLog) -> None:
    assert (log.leader_epoch(0), log.lost_partitions()) == (0, [])
    log.metadata.image = with_leader_epoch(log.metadata.image, 7)
    assert log.lost_partitions() == [0]
    log.resign([0])
    assert (log.leader_epoch(0), log.new_partitions()) == (-1, [0])
    assert (log.leader_epoch(0), log.is_to_be_loaded(0)) == (7, True)


def test_a_partition_that_is_resigned_while_it_is_read_is_not_used(log: KeyLog) -> None:
    async def scenario() -> None:
        log.resign([0])
        log.new_partitions()
        reading = asyncio.ensure_future(log.read_keys())
        await settle()
        log.resign([0])
        log.new_partitions()
        assert await reading is None
        assert log.is_to_be_loaded(0)

    log.write(*[b"%d" % number for number in range(40 * STEPS_PER_TURN)])
    asyncio.run(scenario())


def test_others_have_a_turn_while_one_large_batch_is_read(log: KeyLog) -> None:
    async def scenario() -> int:
        turns = 0

        async def others() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        other = asyncio.ensure_future(others())
        await log.read_keys()
        other.cancel()
        return turns

    log.write(*[b"%d" % number for number in range(5 * STEPS_PER_TURN)])
    assert asyncio.run(scenario()) >= 5


def test_one_that_cannot_be_loaded_holds_nobody_up_and_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        log = KeyLog()
        log.metadata.add("__state", 3)
        loaded: list[int] = []
        damaged = {0}
        done = asyncio.Event()

        async def load(partition: int) -> None:
            if partition in damaged:
                raise struct.error("unpack_from requires a buffer of at least 8 bytes")
            rest = await log._read(partition, Keys(), lambda: loaded.append(partition))
            assert rest is None
            if 0 in loaded:
                done.set()

        tasks: list[asyncio.Task[None]] = []

        def spawn(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
            tasks.append(asyncio.ensure_future(work))
            return tasks[-1]

        monkeypatch.setattr("headwater.logtier.state_topic.loading.RETRY_BACKOFF_S", 0.001)
        loader = StateLoader(log, load, lambda: None, spawn)
        loader.begin()
        await settle()
        assert (loaded, log.is_active(1), log.is_active(2)) == ([1, 2], True, True)
        damaged.clear()
        await done.wait()
        await settle()
        assert (loaded, log.is_active(0), loader.is_busy) == ([1, 2, 0], True, False)
        loader.stop()

    asyncio.run(scenario())
