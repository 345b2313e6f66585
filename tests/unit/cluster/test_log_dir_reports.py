"""What a broker reports of its log folders when the metadata change meanwhile, and the search for room."""

from __future__ import annotations

import asyncio
import errno
import uuid
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest

from headwater.logtier.cluster import log_dir_reports
from headwater.logtier.cluster.log_dir_reports import LogDirReports
from headwater.logtier.metadata.image import BrokerRegistration, MetadataImage
from headwater.logtier.metadata.paths import BrokerProcess
from headwater.logtier.peers.errors import PeersClosedError
from headwater.logtier.protocol.errors import ErrorCode
from headwater.logtier.protocol.topic_partition import TopicPartition
from headwater.logtier.runtime.disk import RealDisk
from tests.topic_images import topic_changes

KEY = TopicPartition("t", 0)


def folder(letter: str) -> Any:
    return SimpleNamespace(
        directory_id=letter * 22, path=letter, identity=letter, is_online=True, health=SimpleNamespace(is_full=False)
    )


def image_of(topic_id: int, partitions: int = 1) -> MetadataImage:
    return MetadataImage().apply(topic_changes("t", uuid.UUID(int=topic_id), [(1,)] * partitions))


class Channel:
    """Answers each request with a code for each replica; `during` runs before the answer."""

    def __init__(self, code: ErrorCode) -> None:
        self.code = code
        self.during: Callable[[], None] = lambda: None
        self.sizes: list[int] = []

    async def call(self, request: Callable[[], Any], *_: Any, **__: Any) -> Any:
        places = request()
        replicas = [each for replicas in places.values() for each in replicas]
        self.sizes.append(len(replicas))
        await asyncio.sleep(0)
        self.during()
        return SimpleNamespace(error_code=ErrorCode.none, replicas=dict.fromkeys(replicas, self.code))


class World:
    """The reports of broker 1, whose logs are all in folder `a`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, image: MetadataImage, code: ErrorCode = ErrorCode.none) -> None:
        monkeypatch.setattr(log_dir_reports, "assign_replicas_to_dirs_request", lambda _, __, places: places)
        self.follower = SimpleNamespace(image=image)
        self.other = folder("b")
        place = folder("a")
        logs = {TopicPartition("t", index): object() for index in range(len(image.topics["t"].partitions))}
        log_manager: Any = SimpleNamespace(directories=[place, self.other], logs=logs, directory_of=lambda _: place)
        self.channel = Channel(code)

        async def update_folders(online: tuple[str, ...], full: tuple[str, ...]) -> None:
            del online, full

        channel: Any = self.channel
        follower: Any = self.follower
        self.reports = LogDirReports(1, channel, log_manager, follower, update_folders, lambda: 1)
        self.reports._check(image.topics.values())


def tell(world: World) -> bool:
    return asyncio.run(world.reports._tell_replicas())


def test_the_place_in_a_topic_that_was_made_anew_meanwhile_stays_to_be_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(monkeypatch, image_of(1), ErrorCode.unknown_topic_id)

    def make_anew() -> None:
        world.follower.image = image_of(2)

    world.channel.during = make_anew
    assert not tell(world)
    assert list(world.reports._unsure) == [KEY]
    # An answer of the present topic: the replica is not this broker's any more.
    assert not tell(world)
    assert world.reports._unsure == {}
    assert tell(world)


def test_many_places_are_told_in_a_row_and_those_of_a_failed_folder_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(log_dir_reports, "REPLICAS_PER_REQUEST_MAX", 4)
    world = World(monkeypatch, image_of(1, partitions=10))
    world.reports._failed(world.other, [TopicPartition("t", 9)])
    assert next(iter(world.reports._unsure)) == TopicPartition("t", 9)
    assert len(world.reports._unsure) == 10
    assert not tell(world)
    assert world.channel.sizes == [4, 4, 2]


def test_a_broker_that_stops_because_its_last_folder_has_failed_reports_it_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(monkeypatch, image_of(1))
    world.reports._log_manager.online_folders = ()  # type: ignore[misc]
    process = BrokerProcess(("a",), "boot")
    told: list[tuple[str, ...]] = []

    async def update_folders(online: tuple[str, ...], full: tuple[str, ...]) -> None:
        told.append(online)
        world.follower.image.registrations[1] = BrokerRegistration(
            1, "h", 1, process=process.with_folders(online, full)
        )

    monkeypatch.setattr(world.reports, "_update_folders", update_folders)
    monkeypatch.setattr(world.channel, "call", AsyncMock(return_value=SimpleNamespace(error_code=ErrorCode.none)))
    world.follower.image = SimpleNamespace(
        registrations={1: BrokerRegistration(1, "h", 1, process=process)}, topic=lambda _: None
    )
    asyncio.run(world.reports.conclude())
    assert told == [()]
    assert world.follower.image.registrations[1].process.failed_directories == ("a",)
    # Without a controller it stops all the same.
    world.follower.image.registrations[1] = BrokerRegistration(1, "h", 1, process=process)
    monkeypatch.setattr(world.channel, "call", AsyncMock(side_effect=PeersClosedError("closed")))
    asyncio.run(world.reports.conclude())


class FullDisk(RealDisk):
    def write_atomic(self, path: str, data: bytes | bytearray | memoryview, *, sync: bool = True) -> None:
        del sync
        Path(f"{path}.tmp").write_bytes(bytes(data)[:10])
        raise OSError(errno.ENOSPC, "No space left on device")


def test_a_search_for_room_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No space left on device"):
        log_dir_reports._write_probe(FullDisk(), str(tmp_path / ".room"))
    log_dir_reports._write_probe(RealDisk(), str(tmp_path / ".room"))
    assert list(tmp_path.iterdir()) == []


def test_what_little_room_is_left_is_not_used_for_the_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = RealDisk()
    monkeypatch.setattr(disk, "free_bytes", lambda _: log_dir_reports.ROOM_BYTES)
    with pytest.raises(OSError, match="No space left on device"):
        log_dir_reports._write_probe(disk, str(tmp_path / ".room"))
