"""Look-ups in logs that are not in memory: another thread waits for the device, and the answers are the same."""

from __future__ import annotations

import asyncio
import errno
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from headwater.logtier.config import BrokerConfig, TopicConfig
from headwater.logtier.handlers.records import (
    fetch,
    list_offsets,
)
from headwater.logtier.log.log import Log
from headwater.logtier.log.log_manager import LogManager
from headwater.logtier.log.reading import LogView
from headwater.logtier.metadata.image import MetadataImage, metadata_delta
from headwater.logtier.protocol.errors import ErrorCode
from headwater.logtier.protocol.topic_partition import TopicPartition
from headwater.logtier.records.batch import TRANSACTIONAL, Record, build_batch
from headwater.logtier.replication.cold_reads import look_up
from headwater.logtier.replication.partition_reads import Fetched, FetchPartition
from headwater.logtier.replication.replica_manager import ReplicaManager
from headwater.logtier.runtime.clock import SystemClock
from headwater.logtier.runtime.disk import File, RealDisk, RealFile
from headwater.logtier.runtime.read_ahead import ReadAhead
from tests.topic_images import topic_changes
from tests.unit.reading.conftest import FLIGHTS, World

P0 = TopicPartition("flights", 0)
CONFIG = TopicConfig(segment_bytes=2_000, index_interval_bytes=300)
PAGE = 256
BATCHES = 100


class ColdDisk(RealDisk):
    """Nothing is in memory until it is read; notes what the thread of the event loop waits for."""

    def __init__(self) -> None:
        super().__init__()
        self.in_memory: set[tuple[str, int]] = set()
        self.waited_for: list[str] = []
        self.failing: OSError | None = None

    def evict(self) -> None:
        self.in_memory.clear()
        self.waited_for.clear()

    def open(self, path: str, *, create: bool = False) -> File:
        return ColdFile(self, path, create)

    def open_read_only(self, path: str) -> File:
        return ColdFile(self, path, create=False)

    def read(self, path: str) -> bytes:
        data = super().read(path)
        self.touch(path, 0, max(1, len(data)))
        return data

    def pages(self, path: str, position: int, size: int) -> set[tuple[str, int]]:
        return {(path, page) for page in range(position // PAGE, (position + max(1, size) - 1) // PAGE + 1)}

    def touch(self, path: str, position: int, size: int) -> None:
        missing = self.pages(path, position, size) - self.in_memory
        if missing and self.failing is not None:
            raise self.failing
        if missing and threading.current_thread() is threading.main_thread():
            self.waited_for.append(f"{path} at {position}")
        self.in_memory |= missing


class ColdFile(RealFile):
    def __init__(self, disk: ColdDisk, path: str, create: bool) -> None:
        super().__init__(path, 0o102 if create else 2)
        self.disk = disk

    def pread(self, size: int, position: int) -> bytes:
        self.disk.touch(self.path, position, min(size, self.size - position))
        return super().pread(size, position)

    def pread_in_memory(self, size: int, position: int) -> bytes | bytearray:
        wanted = min(size, self.size - position)
        if self.disk.pages(self.path, position, wanted) - self.disk.in_memory:
            raise BlockingIOError(errno.EAGAIN, "not in memory")
        return super().pread(wanted, position)


class Node:
    """One broker's replicas of `flights`, closed and opened again, so that nothing is in memory."""

    def __init__(self, path: Path) -> None:
        self.config = BrokerConfig.from_properties({"log.dirs": [str(path)], "node.id": 1})
        self.image = MetadataImage()
        changes = topic_changes("flights", FLIGHTS, [(1,)])
        self._open(None)
        image = self.image.apply(changes)
        self.replicas.apply(metadata_delta(self.image, image))
        self.image = image
        for number in range(BATCHES):
            # Times go to and fro, by less than a segment's.
            record = Record(None, b"%d" % number * 20, 1_000 * number + 700 * (number % 3))
            if number % 10 == 3:
                self._abort(record, 1_000 + number)
            else:
                self.replicas.append(P0, build_batch([record]), now_ms=1_000)

    def _abort(self, record: Record, producer_id: int) -> None:
        """A transaction of one record, aborted."""
        verification = self.replicas.begin_verification(P0, producer_id, 0, 0, is_epoch_bumped=False)
        batch = build_batch(
            [record], producer_id=producer_id, producer_epoch=0, base_sequence=0, attributes=TRANSACTIONAL
        )
        self.replicas.append(P0, batch, now_ms=1_000, verification=verification)
        self.replicas.append_end_txn_marker(
            P0,
            producer_id=producer_id,
            producer_epoch=0,
            coordinator_epoch=0,
            commit=False,
            transaction_version=1,
        )

    def _open(self, read_ahead: ReadAhead | None) -> None:
        self.disk = ColdDisk()
        self.logs = LogManager(
            self.config, self.disk, SystemClock(), random.Random(1), topic_configs={"flights": CONFIG}
        )
        self.logs.start()
        self.replicas = ReplicaManager(
            1,
            lambda _: CONFIG,
            self.logs,
            SystemClock(),
            lambda delay, call: asyncio.get_running_loop().call_later(delay, call),
            read_ahead,
        )
        self.replicas.start(self.image)
        for log in self.logs.logs.values():
            log.release()
        self.disk.evict()

    def reopen(self, read_ahead: ReadAhead | None) -> Log:
        self.logs.close()
        self._open(read_ahead)
        return self.replicas.log(P0)

    async def fetch(self, offset: int, bytes_max: int, *, committed: bool = False) -> Fetched:
        wanted = FetchPartition(P0, None, offset, bytes_max, is_read_committed=committed)
        found = self.replicas.fetches.fetch([wanted], bytes_max=bytes_max, bytes_min=1, wait_ms_max=0)
        return found if isinstance(found, list) else await found


def shown(fetched: Fetched) -> Any:
    [only] = fetched
    records = only.records
    data = None if records is None else records.file.pread(records.size, records.position)
    return only.error_code, only.high_watermark, data, only.aborted_transactions


@pytest.fixture
def ahead() -> Iterator[ReadAhead]:
    ahead = ReadAhead()
    yield ahead
    ahead.close()


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    node = Node(tmp_path_factory.mktemp("cold"))
    assert node.replicas.log(P0).segment_count > 4
    yield node
    node.logs.close()


@pytest.mark.parametrize("committed", [False, True])
def test_a_fetch_of_what_is_not_in_memory_waits_in_another_thread(
    node: Node, ahead: ReadAhead, committed: bool
) -> None:
    async def found(read_ahead: ReadAhead | None) -> list[Any]:
        answers = []
        for offset in (0, 33, 64, 97):
            for bytes_max in (10, 500):
                node.reopen(read_ahead)
                fetched = await node.fetch(offset, bytes_max, committed=committed)
                if read_ahead is not None:
                    assert node.disk.waited_for == []
                answers.append(shown(fetched))
        return answers

    patient = asyncio.run(found(None))
    assert any(aborted for *_, aborted in patient) == committed
    assert asyncio.run(found(ahead)) == patient


def test_what_is_in_memory_is_fetched_at_once(node: Node, ahead: ReadAhead) -> None:
    async def scenario() -> None:
        node.reopen(ahead)
        first = await node.fetch(50, 500)
        wanted = FetchPartition(P0, None, 50, 500)
        again = node.replicas.fetches.fetch([wanted], bytes_max=500, bytes_min=1, wait_ms_max=0)
        assert isinstance(again, list)
        assert shown(again) == shown(first)

    asyncio.run(scenario())


def test_a_fetch_whose_client_goes_away_is_given_up(node: Node, ahead: ReadAhead) -> None:
    async def scenario() -> None:
        node.reopen(ahead)
        wanted = FetchPartition(P0, None, 20, 500)
        fetching = node.replicas.fetches.fetch([wanted], bytes_max=500, bytes_min=1_000, wait_ms_max=60_000)
        assert not isinstance(fetching, list)
        await asyncio.sleep(0)
        fetching.cancel()
        await asyncio.gather(fetching, return_exceptions=True)
        assert fetching.cancelled()
        assert node.replicas.delayed_operations == 0

    asyncio.run(scenario())


def test_a_fetch_that_waited_is_answered_by_another_thread_if_its_records_are_no_longer_in_memory(
    node: Node, ahead: ReadAhead
) -> None:
    async def scenario() -> None:
        log = node.reopen(ahead)
        for is_client_there in (False, True):
            segment = log.segments[-1]
            wanted = FetchPartition(P0, None, segment.base_offset, 1_000_000)
            waiting = node.replicas.fetches.fetch([wanted], bytes_max=1_000_000, bytes_min=2_000, wait_ms_max=60_000)
            assert not isinstance(waiting, list)
            while not node.replicas.delayed_operations:  # noqa: ASYNC110 (another thread decides)
                await asyncio.sleep(0)
            node.disk.evict()
            while log.segments[-1] is segment:
                assert not waiting.done()
                node.replicas.append(P0, build_batch([Record(None, b"late" * 20, 99_000)]), now_ms=1_000)
            assert node.replicas.delayed_operations == 0
            if is_client_there:
                [found] = await waiting
                assert found.size == segment.size
            else:
                waiting.cancel()
                await asyncio.gather(waiting, return_exceptions=True)
            assert node.disk.waited_for == []

    asyncio.run(asyncio.wait_for(scenario(), 60))


@pytest.mark.parametrize("timestamp_ms", [-1, 0, 15_500, 50_000, 99_000, 1_000_000, None])
def test_a_look_up_by_timestamp_waits_in_another_thread(node: Node, ahead: ReadAhead, timestamp_ms: int | None) -> None:
    def find(log: Any, may_wait: bool) -> Any:
        if timestamp_ms is None:
            return log.offset_of_max_timestamp(may_wait=may_wait)
        return log.offset_for_timestamp(timestamp_ms, may_wait=may_wait)

    patient = find(node.reopen(None), True)
    log = node.reopen(ahead)
    assert asyncio.run(look_up(log, find, ahead)) == patient
    assert node.disk.waited_for == []
    # The log has the indexes now.
    node.disk.in_memory.clear()
    log.segments[0].newest_ms(False)


def test_a_log_grows_while_another_thread_reads_it(node: Node, ahead: ReadAhead) -> None:
    """What a thread works on is not touched by appends, nor are they by what it gives back."""
    log = node.reopen(ahead)
    end = log.log_end_offset
    view = LogView(log, end - 1)
    for _ in range(12):
        node.replicas.append(P0, build_batch([Record(None, b"late" * 20, 1)]), now_ms=1_000)
    assert view.read(end - 1, 1_000_000, upper_bound_offset=end, min_one_batch=True).size
    view.hand_back()
    assert view.log_end_offset == end
    assert log.log_end_offset == end + 12
    found = log.read(end, 1_000_000, upper_bound_offset=log.log_end_offset, min_one_batch=True)
    assert found.first_offset == end


def test_indexes_that_were_lost_are_built_by_the_log_itself(node: Node, ahead: ReadAhead) -> None:
    log = node.reopen(ahead)
    oldest = Path(log.directory, f"{0:020d}.index")
    before = oldest.read_bytes()
    oldest.unlink()
    asyncio.run(node.fetch(3, 500))
    assert oldest.read_bytes() == before


def test_a_segment_that_goes_while_it_is_read_is_no_failure(node: Node, ahead: ReadAhead) -> None:
    async def scenario() -> None:
        log = node.reopen(ahead)
        begins = log.segments[1].base_offset
        real_run: Callable[..., Any] = ahead.run

        def run_late(task: Any) -> Any:
            ahead.run = real_run  # type: ignore[method-assign]
            log.delete_records_before(begins, log.log_end_offset)
            log.delete_old_segments(1_000, log.log_end_offset)
            log.remove_deleted_files(1 << 60)
            return real_run(task)

        ahead.run = run_late  # type: ignore[method-assign]
        [fetched] = await node.fetch(0, 500)
        assert fetched.error_code is ErrorCode.offset_out_of_range
        ahead.run = run_late  # type: ignore[method-assign]
        log = node.reopen(ahead)
        begins = log.segments[1].base_offset
        found = await look_up(log, lambda each, wait: each.offset_for_timestamp(0, may_wait=wait), ahead)
        assert found is not None
        assert found.offset >= begins

    asyncio.run(scenario())


def test_a_look_up_whose_client_goes_away_hands_nothing_back(
    node: Node, ahead: ReadAhead, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread goes on: an index that it is still building would be taken for a whole one."""
    handed_back: list[LogView] = []
    monkeypatch.setattr(LogView, "hand_back", handed_back.append)
    begun, go = threading.Event(), threading.Event()

    def find(_: Any, may_wait: bool) -> None:
        if not may_wait:
            raise BlockingIOError
        begun.set()
        assert go.wait(30)

    async def scenario() -> None:
        looking = asyncio.create_task(look_up(node.reopen(ahead), find, ahead))
        assert await asyncio.to_thread(begun.wait, 30)
        looking.cancel()
        await asyncio.gather(looking, return_exceptions=True)
        assert looking.cancelled()
        go.set()

    asyncio.run(scenario())
    assert handed_back == []


def test_a_disk_that_fails_under_a_look_up_takes_the_folder_offline(tmp_path: Path, ahead: ReadAhead) -> None:
    node = Node(tmp_path)
    node.reopen(ahead)
    node.disk.failing = OSError(errno.EIO, "Input/output error")
    [fetched] = asyncio.run(node.fetch(20, 500))
    assert fetched.error_code is ErrorCode.kafka_storage_error
    assert node.replicas.is_offline(P0)
    node.disk.failing = None
    node.logs.close()


class Failing(ReadAhead):
    """Takes everything for cold, and cannot read slices of one folder."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self.where = where

    def is_cold(self, records: Any) -> bool:
        return True

    def warm(self, slices: Sequence[Any]) -> Any:
        failed = [each for each in slices if self.where in each.file.path]
        return self.run(lambda: [(each, OSError(errno.EIO, "Input/output error")) for each in failed])


def test_records_that_cannot_be_read_ahead_are_answered_with_an_error_and_the_others_sent(world: World) -> None:
    world.append("flights", 0, b"a")
    world.append("flights", 1, b"b")
    ahead = world.services.read_ahead = Failing("flights-1")
    topic = {
        "topic_id": FLIGHTS,
        "partitions": [
            {"partition": index, "fetch_offset": 0, "partition_max_bytes": 1_000, "current_leader_epoch": -1}
            | {"last_fetched_epoch": -1, "log_start_offset": -1}
            for index in (0, 1)
        ],
    }
    fields = {"max_wait": 0, "min_bytes": 0, "max_bytes": 10_000, "isolation_level": 0, "session_id": 0}
    response = world.ask(
        fetch, 13, replica_id=-1, session_epoch=-1, topics=[topic], forgotten_topics_data=[], rack_id="", **fields
    )
    first, second = response.responses[0].partitions
    assert (first.error_code, second.error_code) == (ErrorCode.none, ErrorCode.kafka_storage_error)
    assert first.records
    assert not second.records
    assert world.replicas.is_offline(TopicPartition("flights", 1))
    ahead.close()


def test_list_offsets_of_a_disk_that_fails_takes_the_folder_offline(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.append("flights", 0, b"a")

    def failing(*_: object) -> bytes:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(RealFile, "pread", failing)
    partition = {"partition_index": 0, "timestamp": 0, "current_leader_epoch": -1}
    topics = [{"name": "flights", "partitions": [partition]}]
    response = world.ask(list_offsets, 10, replica_id=-1, isolation_level=0, topics=topics, timeout=1000)
    assert response.topics[0].partitions[0].error_code is ErrorCode.kafka_storage_error
    assert world.replicas.is_offline(P0)
