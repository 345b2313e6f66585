"""Several log folders: one that fails, one that is missing at the start, one that comes back."""

from __future__ import annotations

import asyncio
import errno
import functools
import os
import random
import shutil
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from headwater.logtier.config import BrokerConfig, TopicConfig
from headwater.logtier.handlers.topics import (
    describe_topic_partitions,
    elect_leaders,
    metadata,
)
from headwater.logtier.log.folders.log_directory import LogDirError
from headwater.logtier.log.log_manager import LogManager
from headwater.logtier.metadata.image import MetadataCache, MetadataImage, metadata_delta
from headwater.logtier.metadata.store import SetData
from headwater.logtier.metadata.topic_nodes import change_topic
from headwater.logtier.protocol.errors import ErrorCode, KafkaError
from headwater.logtier.protocol.topic_partition import TopicPartition
from headwater.logtier.records.batch import Record, build_batch
from headwater.logtier.replication.log_assignment import directories_of, is_held_elsewhere
from headwater.logtier.replication.partition_reads import FetchPartition
from headwater.logtier.replication.replica_manager import ReplicaManager
from headwater.logtier.runtime.clock import SystemClock
from headwater.logtier.runtime.disk import Disk, RealDisk
from tests.topic_images import Changes, topic_changes, topic_deletion
from tests.unit.reading.conftest import World
from tests.unit.replication.test_disk_errors import FaultyDisk

FIRST, SECOND = uuid.UUID(int=1), uuid.UUID(int=2)
BROKEN = OSError(errno.EIO, "Input/output error")
BATCH = build_batch([Record(None, b"v" * 100, 1_000)])


def log_manager(
    folders: list[str], image: MetadataImage, disk: Disk, on_fatal: Callable[[str], None] = lambda _: None
) -> LogManager:
    """The logs of broker 1; not started."""
    return LogManager(
        BrokerConfig.from_properties({"log.dirs": folders, "node.id": 1}),
        disk,
        SystemClock(),
        random.Random(1),
        topic_ids={topic.name: topic.topic_id for topic in image.topics.values()},
        replica_directories=directories_of(1, image),
        is_held_elsewhere=functools.partial(is_held_elsewhere, 1, image),
        on_fatal=on_fatal,
    )


class Node:
    """The log folders and replicas of one broker; `kill` leaves the files as they are."""

    def __init__(self, folders: list[str], image: MetadataImage, disk: Disk) -> None:
        self.fatal: list[str] = []
        self.image = image
        self.logs = log_manager(folders, image, disk, self.fatal.append)
        self.logs.start()
        self.replicas = ReplicaManager(
            1,
            lambda _: TopicConfig(),
            self.logs,
            SystemClock(),
            lambda delay, call: asyncio.get_running_loop().call_later(delay, call),
        )
        self.replicas.start(image)

    def learn(self, partition: int, **changes: Any) -> None:
        """The next process finds another state of a partition in the metadata."""
        self.replicas.apply = lambda _: None  # type: ignore[method-assign, assignment]
        self.change_partition(partition, **changes)

    def change(self, changes: Changes) -> None:
        image = self.image.apply(changes)
        delta = metadata_delta(self.image, image)
        self.image = image
        self.replicas.apply(delta)

    def create(self, topic: str = "flights", topic_id: uuid.UUID = FIRST, partitions: int = 4) -> None:
        self.change(topic_changes(topic, topic_id, [(1,)] * partitions))

    def change_partition(self, partition: int, **changed: Any) -> None:
        """Change a partition of `flights`, in a new leader epoch."""
        topic = self.image.topics["flights"]
        old = topic.partitions
        state = replace(old[partition], leader_epoch=old[partition].leader_epoch + 1, **changed)
        new = (*old[:partition], state, *old[partition + 1 :])
        operations = change_topic("flights", topic.topic_id, old, new)
        self.change([(each.path, each.data) for each in operations if isinstance(each, SetData)])

    def move_away_and_back(self, partition: int) -> None:
        self.change_partition(partition, replicas=(2,), isr=(2,), leader=2, directories=())
        self.change_partition(partition, replicas=(1,), isr=(1,), leader=1)

    def report(self, partition: int) -> None:
        """The metadata name the folder of this log."""
        directory = self.logs.directory_of(TopicPartition("flights", partition))
        self.change_partition(partition, directories=(directory.directory_id,))

    def append(self, partition: int, topic: str = "flights") -> int | ErrorCode:
        try:
            return self.replicas.append(TopicPartition(topic, partition), BATCH, now_ms=1_000).first_offset
        except KafkaError as error:
            return error.code

    def fetch(self, partition: int, topic: str = "flights") -> ErrorCode:
        wanted = [FetchPartition(TopicPartition(topic, partition), None, 0, 1_000)]
        found = self.replicas.fetches.fetch(wanted, bytes_max=1_000, bytes_min=0, wait_ms_max=0)
        assert isinstance(found, list)
        return found[0].error_code

    def in_folder(self, path: str) -> list[int]:
        return [key.partition for key, log in self.logs.logs.items() if os.path.dirname(log.directory) == path]

    def kill(self) -> None:
        for directory in self.logs.directories:
            directory.release()


Start = Callable[..., Node]


@pytest.fixture
def folders(tmp_path: Path) -> list[str]:
    return [str(tmp_path / name) for name in ("one", "two", "three")]


@pytest.fixture
def start(folders: list[str]) -> Iterator[Start]:
    nodes: list[Node] = []

    def make(previous: Node | None = None, *, disk: Disk | None = None, only: list[str] | None = None) -> Node:
        if previous is not None:
            previous.kill()
        image = MetadataImage() if previous is None else previous.image
        node = Node(only or folders, image, disk or RealDisk())
        nodes.append(node)
        return node

    yield make
    for node in nodes:
        node.kill()


STORAGE_ERROR = ErrorCode.kafka_storage_error


@pytest.mark.parametrize("operation", ["append", "pread"])
def test_a_failed_folder_goes_offline_and_the_rest_serves_on(
    start: Start, folders: list[str], operation: str, caplog: pytest.LogCaptureFixture
) -> None:
    disk = FaultyDisk()
    node = start(disk=disk)
    node.create(partitions=6)
    for partition in range(6):
        node.append(partition)
        node.append(partition)
    failed = node.in_folder(folders[1])
    assert len(failed) == 2
    disk.failing, disk.where = {operation: BROKEN}, folders[1]
    if operation == "append":
        assert node.append(failed[0]) is STORAGE_ERROR
    else:
        wanted = [FetchPartition(TopicPartition("flights", failed[0]), None, 1, 1_000)]
        node.logs.logs[TopicPartition("flights", failed[0])].segments[-1].release()
        node.replicas.fetches.fetch(wanted, bytes_max=1_000, bytes_min=0, wait_ms_max=0)
    disk.failing = {}
    offline = [record for record in caplog.records if "is offline" in record.message]
    assert len(offline) == 1
    for partition in range(6):
        expected = partition in failed
        assert (node.append(partition) is STORAGE_ERROR) == expected
        assert (node.fetch(partition) is STORAGE_ERROR) == expected
        assert node.replicas.is_offline(TopicPartition("flights", partition)) == expected
    assert node.fatal == []


def world_of(node: Node, tmp_path: Path) -> World:
    """A client of the node."""
    world = World(tmp_path / "elsewhere")
    world.services.replica_manager = node.replicas
    world.services.metadata = MetadataCache(world.config)
    world.services.metadata.publish(node.image)
    return world


@pytest.mark.parametrize(
    ("handler", "version", "asked"),
    [
        (
            metadata,
            12,
            {"topics": None, "allow_auto_topic_creation": False, "include_topic_authorized_operations": False},
        ),
        (describe_topic_partitions, 0, {"topics": (), "response_partition_limit": 100, "cursor": None}),
    ],
)
def test_a_partition_has_no_leader_while_its_folder_is_offline(
    start: Start, tmp_path: Path, handler: ModuleType, version: int, asked: dict[str, Any]
) -> None:
    node = start()
    node.create(partitions=6)
    world = world_of(node, tmp_path)

    def described() -> list[tuple[int, ErrorCode, tuple[int, ...]]]:
        [topic] = world.ask(handler, version, **asked).topics
        return [(each.leader_id, each.error_code, each.offline_replicas) for each in topic.partitions]

    led = (1, ErrorCode.none, ())
    assert described() == [led] * 6
    away = node.in_folder(node.logs.directories[1].path)
    node.logs.directories[1].health.fail("unplugged")
    lost = (-1, ErrorCode.leader_not_available, (1,))
    assert described() == [lost if index in away else led for index in range(6)]


@pytest.mark.parametrize(
    ("election_type", "code"),
    [(0, ErrorCode.preferred_leader_not_available), (1, ErrorCode.eligible_leaders_not_available)],
)
def test_an_election_finds_nobody_while_the_folder_is_offline(
    start: Start, tmp_path: Path, election_type: int, code: ErrorCode
) -> None:
    node = start()
    node.create(partitions=6)
    world = world_of(node, tmp_path)
    away = node.in_folder(node.logs.directories[1].path)
    node.logs.directories[1].health.fail("unplugged")

    def elected(partitions: Sequence[int] | None) -> dict[int, ErrorCode]:
        asked = None if partitions is None else [{"topic": "flights", "partitions": tuple(partitions)}]
        response = world.ask(elect_leaders, 2, election_type=election_type, topic_partitions=asked, timeout=1_000)
        [topic] = response.replica_election_results
        return {each.partition_id: each.error_code for each in topic.partition_result}

    assert elected(None) == dict.fromkeys(away, code)
    not_needed = ErrorCode.election_not_needed
    assert elected(range(6)) == {index: code if index in away else not_needed for index in range(6)}


def test_new_partitions_are_made_in_the_folders_that_are_left(start: Start, folders: list[str]) -> None:
    disk = FaultyDisk()
    node = start(disk=disk)
    node.create(partitions=3)
    node.logs.directories[1].health.fail("unplugged")
    node.create("trains", SECOND, partitions=4)
    assert [node.append(partition, "trains") for partition in range(4)] == [0] * 4
    assert node.in_folder(folders[1]) == []


def test_fetches_that_wait_are_answered_when_their_folder_fails(start: Start) -> None:
    async def scenario() -> None:
        node = start()
        node.create(partitions=3)
        [partition] = node.in_folder(node.logs.directories[2].path)
        wanted = [FetchPartition(TopicPartition("flights", partition), None, 0, 1_000)]
        waiting = node.replicas.fetches.fetch(wanted, bytes_max=1_000, bytes_min=1, wait_ms_max=60_000)
        assert not isinstance(waiting, list)
        node.logs.directories[2].health.fail("unplugged")
        assert (await waiting)[0].error_code is STORAGE_ERROR

    asyncio.run(scenario())


@pytest.mark.parametrize("operation", ["append", "write_atomic", "create"])
def test_a_full_disk_is_no_failed_folder(start: Start, folders: list[str], operation: str) -> None:
    disk = FaultyDisk()
    node = start(disk=disk)
    node.create(partitions=3)
    disk.failing, disk.where = {operation: OSError(errno.ENOSPC, "No space left on device")}, folders[1]
    [partition] = node.in_folder(folders[1])
    node.append(partition)
    assert all(directory.is_online for directory in node.logs.directories)
    disk.failing = {}
    assert not isinstance(node.append(partition), ErrorCode)


def test_the_broker_cannot_go_on_without_the_folder_of_the_metadata(start: Start, folders: list[str]) -> None:
    node = start()
    node.logs.directories[0].health.fail("unplugged")
    assert len(node.fatal) == 1
    assert folders[0] in node.fatal[0]
    assert "metadata" in node.fatal[0]


def test_a_folder_that_comes_back_has_its_records(start: Start, folders: list[str]) -> None:
    node = start()
    node.create(partitions=6)
    for partition in range(6):
        node.append(partition)
    there = node.in_folder(folders[1])
    node.logs.directories[1].health.fail("unplugged")
    node.append(there[0])
    again = start(node)
    assert sorted(again.in_folder(folders[1])) == sorted(there)
    assert [again.append(partition) for partition in range(6)] == [1] * 6


def test_a_folder_that_is_missing_at_the_start_is_not_begun_anew(
    start: Start, folders: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    """A disk that is not mounted leaves an empty folder: its partitions must not begin at offset 0 beside it."""
    node = start()
    node.create(partitions=6)
    for partition in range(6):
        node.append(partition)
    away = node.in_folder(folders[2])
    node.kill()
    shutil.move(folders[2], folders[2] + ".away")
    os.mkdir(folders[2])
    broken = start(node)
    assert "check that its disk is mounted" in caplog.text
    assert os.listdir(folders[2]) == []
    for partition in range(6):
        assert (broken.append(partition) is STORAGE_ERROR) == (partition in away)
    # A topic made meanwhile is no business of the folder that is away.
    broken.create("trains", SECOND, partitions=3)
    assert [broken.append(partition, "trains") for partition in range(3)] == [0] * 3
    broken.kill()
    os.rmdir(folders[2])
    shutil.move(folders[2] + ".away", folders[2])
    mended = start(broken)
    assert [mended.append(partition) for partition in away] == [1] * len(away)


def test_a_replaced_folder_is_used_once_its_line_is_taken_out(start: Start, folders: list[str]) -> None:
    node = start()
    node.create(partitions=3)
    node.kill()
    shutil.rmtree(folders[1])
    broken = start(node)
    assert not broken.logs.directories[1].is_online
    known = Path(folders[0], "known-log-directories")
    known.write_text("".join(line for line in known.read_text().splitlines(True) if folders[1] not in line))
    begun = start(broken)
    assert begun.logs.directories[1].is_online
    assert [begun.append(partition) for partition in range(3)] == [0] * 3


def test_a_topic_made_anew_while_its_folder_was_away_wins_over_what_comes_back(
    start: Start, folders: list[str]
) -> None:
    node = start()
    node.create(partitions=3)
    for partition in range(3):
        node.append(partition)
    node.logs.directories[2].health.fail("unplugged")
    node.change(topic_deletion(node.image, "flights"))
    node.create(topic_id=SECOND, partitions=3)
    assert [node.append(partition) for partition in range(3)] == [0] * 3
    mended = start(node)
    assert mended.logs.directories[2].is_online
    assert {log.topic_id for log in mended.logs.logs.values()} == {SECOND}
    assert [mended.append(partition) for partition in range(3)] == [1] * 3


def test_a_topic_that_lost_its_id_keeps_its_records(start: Start, folders: list[str]) -> None:
    """partition.metadata is not synced: a power loss may leave it empty, which must not delete the log."""
    node = start(only=folders[:1])
    node.create(partitions=1)
    node.append(0)
    node.kill()
    Path(folders[0], "flights-0", "partition.metadata").write_bytes(b"")
    again = start(node, only=folders[:1])
    assert again.append(0) == 1
    assert "topic_id" in Path(folders[0], "flights-0", "partition.metadata").read_text()


def test_a_log_that_cannot_be_opened_takes_its_folder_offline_at_the_start(start: Start, folders: list[str]) -> None:
    node = start()
    node.create(partitions=6)
    for partition in range(6):
        node.append(partition)
    away = node.in_folder(folders[1])
    disk = FaultyDisk()
    disk.failing, disk.where = {"open": BROKEN}, folders[1]
    broken = start(node, disk=disk)
    disk.failing = {}
    for partition in range(6):
        assert (broken.append(partition) is STORAGE_ERROR) == (partition in away)


def test_a_folder_of_the_only_disk_that_cannot_be_opened_ends_the_start(start: Start, folders: list[str]) -> None:
    node = start(only=folders[:1])
    node.create(partitions=1)
    node.append(0)
    disk = FaultyDisk()
    disk.failing = {"open": BROKEN}
    with pytest.raises(LogDirError, match="Input/output error"):
        start(node, disk=disk, only=folders[:1])


def test_two_logs_of_one_partition_with_the_topics_id_are_refused(start: Start, folders: list[str]) -> None:
    node = start()
    node.create(partitions=3)
    [partition] = node.in_folder(folders[0])
    shutil.copytree(f"{folders[0]}/flights-{partition}", f"{folders[1]}/flights-{partition}")
    with pytest.raises(LogDirError, match=f"flights-{partition} is also in"):
        start(node)


def test_a_full_disk_at_the_start_is_no_reason_not_to_start(start: Start, folders: list[str]) -> None:
    node = start(only=folders[:1])
    node.create(partitions=2)
    node.kill()
    shutil.rmtree(f"{folders[0]}/flights-1")
    disk = FaultyDisk()
    disk.failing, disk.where = {"create": OSError(errno.ENOSPC, "No space left on device")}, "flights-1"
    full = start(node, disk=disk, only=folders[:1])
    assert full.append(0) == 0
    assert full.append(1) is STORAGE_ERROR
    disk.failing = {}
    asyncio.run(full.replicas.make_missing_logs())
    assert full.append(1) == 0


@pytest.mark.parametrize("fault", ["source", "target"])
def test_a_move_that_fails_takes_the_folder_offline_that_failed(start: Start, folders: list[str], fault: str) -> None:
    async def scenario() -> None:
        disk = FaultyDisk()
        node = start(disk=disk, only=folders[:2])
        node.create(partitions=2)
        [partition] = node.in_folder(folders[1])
        for _ in range(3):
            node.append(partition)
        # The kernel copies: it does not say which of the two it was.
        disk.failing = {"copy": BROKEN, "pread": BROKEN} if fault == "source" else {"copy": BROKEN}
        disk.where = folders[1]
        node.replicas.log_dirs.alter(TopicPartition("flights", partition), folders[0])
        while any(each.is_future for where in node.replicas.log_dirs.describe(None) for each in where.replicas):  # noqa: ASYNC110
            await asyncio.sleep(0)
        disk.failing = {}
        online = [directory.is_online for directory in node.logs.directories]
        assert online == ([True, False] if fault == "source" else [False, True])

    asyncio.run(scenario())


def test_a_log_that_the_metadata_do_not_know_is_set_aside_and_kept(
    start: Start, folders: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    """Metadata that were restored from an older copy know no topic that was made since: its records must not go."""
    node = start(only=folders[:1])
    node.create(partitions=2)
    older = node.image
    node.create("orders", SECOND, 1)
    assert node.append(0, "orders") == 0
    node.image = older
    again = start(node, only=folders[:1])
    known = {TopicPartition("flights", 0), TopicPartition("flights", 1)}
    assert set(again.logs.logs) == known
    assert [record.message for record in caplog.records if "belongs to no topic" in record.message]
    again.logs.maintain(SystemClock().now_ms() + 10**12, again.replicas.high_watermark)
    again.logs.close()
    third = start(again, only=folders[:1])
    assert set(third.logs.logs) == known
    [kept] = Path(folders[0]).glob("orders-0.*-stray")
    assert (kept / "00000000000000000000.log").read_bytes()


def test_a_partition_that_was_moved_away_and_back_while_its_folder_was_offline_has_the_log_that_was_made_then(
    start: Start, folders: list[str]
) -> None:
    """Found in simulated runs: the broker made another log, and did not start when the folder was there again."""
    node = start()
    node.create(partitions=3)
    [partition] = node.in_folder(folders[1])
    for _ in range(3):
        node.append(partition)
    node.logs.directories[1].health.fail("unplugged")
    node.move_away_and_back(partition)
    assert node.append(partition) == 0
    node.report(partition)
    mended = start(node)
    assert mended.logs.directories[1].is_online
    assert mended.append(partition) == 1
    assert mended.in_folder(folders[1]) == []
    assert not os.path.exists(f"{folders[1]}/flights-{partition}")
    [kept] = Path(folders[1]).glob(f"flights-{partition}.*-stray")
    assert (kept / f"{0:020}.log").stat().st_size, "its records are kept"


@pytest.mark.parametrize(("cut_folder", "epoch"), [(0, 0), (1, 0), (0, 5), (1, 5)])
def test_of_two_logs_whose_folder_was_never_reported_the_later_one_is_opened_if_others_have_the_records(
    start: Start, folders: list[str], cut_folder: int, epoch: int
) -> None:
    """The folder was away while its replica was, too; the broker made another log, and ended before it reported it."""
    node = start()
    node.create(partitions=3)
    [partition] = node.in_folder(folders[0])
    for _ in range(3):
        node.append(partition)
    size = Path(folders[0], f"flights-{partition}", f"{0:020}.log").stat().st_size // 3
    node.learn(partition, replicas=(1, 2), isr=(1, 2), leader=2, directories=())
    shutil.copytree(f"{folders[0]}/flights-{partition}", f"{folders[1]}/flights-{partition}")
    shorter = Path(folders[cut_folder], f"flights-{partition}", f"{0:020}.log")
    os.truncate(shorter, 2 * size)
    with shorter.open("r+b") as file:
        file.seek(size + 12)
        file.write(epoch.to_bytes(4, "big"))  # of its last batch
    node.kill()
    logs = log_manager(folders, node.image, RealDisk())
    logs.start()
    later = cut_folder if epoch else 1 - cut_folder
    assert logs.directory_of(TopicPartition("flights", partition)).path == folders[later]
    logs.close()
    [kept] = Path(folders[1 - later]).glob(f"flights-{partition}.*-stray")
    assert (kept / f"{0:020}.log").stat().st_size, "its records are kept"


@pytest.mark.parametrize("named", [0, 1, 2])
def test_of_three_logs_of_a_replica_the_one_that_the_metadata_name_is_opened(
    start: Start, folders: list[str], named: int
) -> None:
    node = start()
    node.create(partitions=3)
    [partition] = node.in_folder(folders[named])
    for _ in range(3):
        node.append(partition)
    node.report(partition)
    for folder in set(folders) - {folders[named]}:
        shutil.copytree(f"{folders[named]}/flights-{partition}", f"{folder}/flights-{partition}")
    again = start(node)
    assert again.append(partition) == 3
    assert partition in again.in_folder(folders[named])


def test_a_marker_that_an_old_move_has_left_does_not_cost_the_log_that_the_metadata_name(
    start: Start, folders: list[str]
) -> None:
    node = start()
    node.create(partitions=3)
    [partition] = node.in_folder(folders[0])
    for _ in range(3):
        node.append(partition)
    node.report(partition)
    former = node.logs.directory_of(TopicPartition("flights", partition)).directory_id
    shutil.copytree(f"{folders[0]}/flights-{partition}", f"{folders[1]}/flights-{partition}")
    Path(folders[1], f"flights-{partition}", "replaces").write_text(f"{former} 0\n")
    again = start(node)
    assert partition in again.in_folder(folders[1]), "a move may not have been reported yet"
    [kept] = Path(folders[0]).glob(f"flights-{partition}.*-stray")
    assert (kept / f"{0:020}.log").stat().st_size


def test_of_two_logs_none_is_chosen_while_that_of_the_named_folder_is_away(start: Start, folders: list[str]) -> None:
    node = start()
    node.create(partitions=3)
    [partition] = node.in_folder(folders[2])
    node.append(partition)
    node.report(partition)
    for folder in folders[:2]:
        shutil.copytree(f"{folders[2]}/flights-{partition}", f"{folder}/flights-{partition}")
    os.rename(folders[2], folders[2] + ".away")
    with pytest.raises(LogDirError, match="is also in"):
        start(node)


def test_a_new_folder_that_cannot_be_used_takes_nothing_away_and_may_be_mended(
    start: Start, folders: list[str]
) -> None:
    node = start(only=folders[:1])
    node.create(partitions=2)
    assert [node.append(partition) for partition in range(2)] == [0] * 2
    os.makedirs(folders[1])
    os.chmod(folders[1], 0)
    Path(folders[1], "meta.properties").mkdir()  # for root, too
    broken = start(node, only=folders[:2])
    assert not broken.logs.directories[1].is_online
    assert [broken.append(partition) for partition in range(2)] == [1] * 2
    os.chmod(folders[1], 0o700)
    Path(folders[1], "meta.properties").rmdir()
    mended = start(broken, only=folders[:2])
    assert mended.logs.directories[1].is_online
    assert [mended.append(partition) for partition in range(2)] == [2] * 2


def test_another_disk_at_the_path_of_a_folder_is_refused_at_each_start(start: Start, folders: list[str]) -> None:
    node = start()
    node.create(partitions=3)
    meta = Path(folders[1], "meta.properties")
    lines = meta.read_text().splitlines()
    meta.write_text("\n".join(f"directory.id={'x' * 22}" if "directory.id" in line else line for line in lines))
    for _ in range(2):
        node = start(node)
        assert not node.logs.directories[1].is_online
