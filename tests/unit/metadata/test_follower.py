"""A follower applies each change once and in order, whoever waits for it."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import uuid
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import cast

import pytest

from headwater.logtier.config import BrokerConfig
from headwater.logtier.metadata import follower as follower_module
from headwater.logtier.metadata import image as image_module
from headwater.logtier.metadata import paths
from headwater.logtier.metadata.change_list import (
    CHANGE_BYTES_MAX,
    CHANGES_MAX,
    ChangesTrimmedError,
    FindPaths,
    MetadataChange,
    RecentChanges,
)
from headwater.logtier.metadata.follower import MetadataFollower
from headwater.logtier.metadata.image import MetadataCache, MetadataDelta, MetadataImage
from headwater.logtier.metadata.local import LocalMetadataStore
from headwater.logtier.metadata.store import Create, Delete, Operation, SetData, StoreUnavailableError
from headwater.logtier.metadata.topic_nodes import create_topic, first_partition_state
from headwater.logtier.runtime.disk import RealDisk


class FailingStore(LocalMetadataStore):
    """The list of changes fails to be read, once for each of `failures`."""

    failures: list[Exception]

    async def changes_from(self, number: int) -> Sequence[MetadataChange]:
        found = await super().changes_from(number)
        if self.failures:
            raise self.failures.pop(0)
        return found


class LaggingStore(LocalMetadataStore):
    """A server of a quorum that shows what was confirmed before its connection only after a sync."""

    shown: tuple[int, dict[str, bytes]] | None = None

    async def sync(self) -> None:
        await super().sync()
        self.shown = None

    async def snapshot(self, find_paths: FindPaths) -> tuple[int, dict[str, bytes]]:
        return await super().snapshot(find_paths) if self.shown is None else self.shown


class World:
    """A local store with one follower."""

    def __init__(self, store: LocalMetadataStore) -> None:
        self.store = store
        self.cache = MetadataCache(BrokerConfig.from_properties({"node.id": 1}))
        self.failures: list[str] = []
        self.follower = MetadataFollower(store, self.cache, self.failures.append)
        self.seen: list[list[str]] = []
        self.cache.subscribe(lambda delta: self.seen.append([topic.name for topic in delta.created]))

    async def add_topic(self, name: str) -> int:
        topic = create_topic(name, uuid.uuid4(), [first_partition_state((1,))])
        return await self.store.append(topic)


def run(directory: Path, scenario: Callable[[World], Awaitable[None]], failures: Sequence[Exception] = ()) -> None:
    async def main() -> None:
        store = FailingStore(str(directory), RealDisk())
        store.failures = list(failures)
        await store.start()
        await store.multi([Create(path, b"") for path in paths.PERSISTENT_PARENTS])
        world = World(store)
        await world.follower.start()
        try:
            await scenario(world)
        finally:
            await world.follower.stop()
            await store.close()

    asyncio.run(main())


def test_the_first_image_has_all_that_was_confirmed_before_the_start(tmp_path: Path) -> None:
    """By an older one a broker would delete the log of a partition that left it, and was assigned to it again."""

    async def scenario() -> None:
        store = LaggingStore(str(tmp_path), RealDisk())
        await store.start()
        await store.multi([Create(path, b"") for path in paths.PERSISTENT_PARENTS])
        world = World(store)
        store.shown = (store.end_offset, {})
        await world.add_topic("t")
        await world.follower.start()
        try:
            assert [*world.cache.image.topics] == ["t"]
        finally:
            await world.follower.stop()
            await store.close()

    asyncio.run(scenario())


def test_changes_are_applied_one_by_one_in_their_order(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        prepared: list[str] = []

        async def prepare(delta: MetadataDelta) -> None:
            prepared.append(delta.created[0].name)
            await asyncio.sleep(0)
            assert delta.created[0].name not in world.cache.image.topics

        world.cache.prepare_with(prepare)
        numbers = await asyncio.gather(*(world.add_topic(f"t{index}") for index in range(5)))
        await world.follower.reached(max(numbers))
        assert numbers == sorted(numbers)
        assert world.seen[1:] == [["t0"], ["t1"], ["t2"], ["t3"], ["t4"]]
        assert prepared == ["t0", "t1", "t2", "t3", "t4"]

    run(tmp_path, scenario)


def test_an_error_of_a_subscriber_belongs_to_the_change_that_caused_it(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        def refuse(delta: MetadataDelta) -> None:
            if delta.created[0].name == "bad":
                raise OSError("disk full")

        world.cache.subscribe(refuse)
        first = await world.add_topic("good")
        second = await world.add_topic("bad")
        third = await world.add_topic("better")
        await world.follower.reached(third)
        await world.follower.reached(first)
        for _ in range(2):  # also of those who ask later
            with pytest.raises(OSError, match="disk full"):
                await world.follower.reached(second)
        assert sorted(world.cache.image.topics) == ["bad", "better", "good"]
        assert world.failures == []

    run(tmp_path, scenario)


def test_errors_of_the_past_keep_no_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a full disk every created topic fails; the frames of the errors hold the images before and after."""
    monkeypatch.setattr(image_module.log, "disabled", True)  # pytest keeps the errors that are logged

    async def scenario(world: World) -> None:
        def refuse(delta: MetadataDelta) -> None:
            try:
                raise BlockingIOError
            except BlockingIOError as error:
                raise OSError("disk full") from error

        world.cache.subscribe(refuse)
        for index in range(20):
            number = await world.add_topic(f"t{index}")
            with contextlib.suppress(OSError):
                await world.follower.reached(number)
        gc.collect()
        images = [each for each in gc.get_objects() if isinstance(each, MetadataImage) and "t0" in each.topics]
        assert len(images) < 5

    run(tmp_path, scenario)


def test_a_waiter_that_is_cancelled_keeps_no_change_from_being_applied(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        number = await world.add_topic("t")
        waiting = asyncio.ensure_future(world.follower.reached(number))
        await asyncio.sleep(0)
        waiting.cancel()
        await world.follower.reached(await world.add_topic("u"))
        assert sorted(world.cache.image.topics) == ["t", "u"]

    run(tmp_path, scenario)


def test_a_change_that_cannot_be_read_ends_the_broker_and_not_the_follower(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        number = await world.store.append([Create(paths.topic_path("t"), b"damaged")])
        with pytest.raises(paths.CorruptNodeError, match="/brokers/topics/t"):
            await world.follower.reached(number)
        assert len(world.failures) == 1
        await world.follower.reached(await world.store.append([SetData(paths.CLUSTER, b"")]))

    run(tmp_path, scenario)


def test_a_list_that_cannot_be_read_for_a_while_is_read_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lost connection to the store must not end the follower: its broker would serve old metadata forever."""
    monkeypatch.setattr(follower_module, "RETRY_S", 0.0)

    async def scenario(world: World) -> None:
        await asyncio.wait_for(world.follower.reached(await world.add_topic("t")), 5)
        assert list(world.cache.image.topics) == ["t"]
        assert world.failures == []

    run(tmp_path, scenario, [StoreUnavailableError("/changes", "the connection is lost")] * 2)


def test_a_list_that_cannot_be_read_at_all_ends_the_broker_and_every_wait(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(world: World) -> None:
        number = await world.add_topic("t")
        for _ in range(2):  # also of those who ask later
            with pytest.raises(paths.CorruptNodeError, match="/changes/7"):
                await asyncio.wait_for(world.follower.reached(number), 5)
        assert len(world.failures) == 1
        (line,) = [record for record in caplog.records if "/changes/7" in record.getMessage()]
        assert line.exc_info is None, "the line says it all"

    run(tmp_path, scenario, [paths.CorruptNodeError("/changes/7", b"damaged")])


def test_a_follower_that_is_too_far_behind_reads_everything_anew(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        go = asyncio.Event()

        async def wait(_: MetadataDelta) -> None:
            await go.wait()

        world.cache.prepare_with(wait)
        await world.add_topic("first")
        await asyncio.sleep(0)
        path = paths.topic_config_path("first")
        operations: list[Operation] = [Create(path, paths.encode_config({"retention.ms": "1"}))]
        for index in range(CHANGES_MAX + 1):
            world.store._recent.add([])  # as many changes as the list holds
            world.store._end_offset += 1
            if index == 0:
                await world.store.multi(operations)
        last = await world.add_topic("last")
        go.set()
        await world.follower.reached(last)
        assert sorted(world.cache.image.topics) == ["first", "last"]
        assert world.cache.image.topics["first"].configs == {"retention.ms": "1"}
        assert world.follower.applied == last + 1

    run(tmp_path, scenario)


class LaggingAndFailingStore(FailingStore, LaggingStore):
    """A list that has lost the next change, in a new session at a server that is behind."""

    is_behind_after_sync = False

    async def sync(self) -> None:
        shown = self.shown
        await super().sync()
        if self.is_behind_after_sync:  # another session has begun meanwhile
            self.shown, self.is_behind_after_sync = shown, False


@pytest.mark.parametrize("is_behind_after_sync", [False, True])
def test_an_image_that_is_read_anew_is_never_older_than_the_applied_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_behind_after_sync: bool
) -> None:
    """Topics that are not in it count as deleted: their logs, the offsets of groups in them, the markers they need."""
    monkeypatch.setattr(follower_module, "RETRY_S", 0.001)

    async def scenario() -> None:
        store = LaggingAndFailingStore(str(tmp_path), RealDisk())
        store.failures = []
        await store.start()
        await store.multi([Create(path, b"") for path in paths.PERSISTENT_PARENTS])
        world = World(store)
        await world.follower.start()
        behind: tuple[int, dict[str, bytes]] = (store.end_offset, {})
        await world.follower.reached(await world.add_topic("t"))
        deleted: list[str] = []
        world.cache.subscribe(lambda delta: deleted.extend(topic.name for topic in delta.deleted))
        store.shown, store.is_behind_after_sync = behind, is_behind_after_sync
        store.failures = [ChangesTrimmedError(), *([ChangesTrimmedError()] if is_behind_after_sync else [])]
        await world.follower.reached(await world.add_topic("u"))
        await world.follower.reached(await world.add_topic("v"))
        assert (sorted(world.cache.image.topics), deleted) == (["t", "u", "v"], [])
        has_caught_up = store.shown is None
        assert has_caught_up
        assert not store.failures
        assert not world.failures
        await world.follower.stop()
        await store.close()

    asyncio.run(scenario())


OTHER_ID = SetData(paths.CLUSTER_ID, paths.encode_cluster_id("other"))


@pytest.mark.parametrize("emptied", [Delete(paths.CLUSTER_ID), OTHER_ID])
def test_a_follower_that_reads_everything_anew_takes_over_no_store_of_another_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, emptied: Operation
) -> None:
    """Its topics would be gone from the image, although nobody has deleted them."""
    monkeypatch.setattr(follower_module, "RETRY_S", 0.001)

    async def scenario(world: World) -> None:
        own_id = Create(paths.CLUSTER_ID, paths.encode_cluster_id("own"))
        await world.follower.reached(await world.store.append([own_id]))
        await world.follower.reached(await world.add_topic("t"))
        store = cast("FailingStore", world.store)
        attempts = 10_000
        store.failures = [ChangesTrimmedError()] * attempts
        await store.multi([emptied])
        async with asyncio.timeout(10):
            while len(store.failures) > attempts - 3 and not world.failures:  # noqa: ASYNC110 (nothing is published)
                await asyncio.sleep(0.001)
        assert list(world.cache.image.topics) == ["t"]
        assert world.cache.image.cluster_id == "own"
        assert [each.startswith(f"{paths.CLUSTER_ID}: ZooKeeper has cluster other") for each in world.failures] == (
            [True] if emptied is OTHER_ID else []
        )

    run(tmp_path, scenario)


def test_a_trimmed_list_says_so() -> None:
    async def scenario() -> None:
        recent = RecentChanges(7)
        for _ in range(CHANGES_MAX + 2):
            recent.add([])
        with pytest.raises(ChangesTrimmedError):
            await recent.wait_from(8)
        assert [change.number for change in await recent.wait_from(9)] == list(range(9, 9 + CHANGES_MAX))

    asyncio.run(scenario())


def test_a_list_of_large_changes_is_trimmed_by_their_bytes() -> None:
    async def scenario() -> None:
        recent = RecentChanges()
        for _ in range(5):
            recent.add([("/brokers/topics/t", bytes(CHANGE_BYTES_MAX // 3))])
        with pytest.raises(ChangesTrimmedError):
            await recent.wait_from(1)
        assert [change.number for change in await recent.wait_from(2)] == [2, 3, 4]
        recent.add([("/brokers/topics/t", bytes(2 * CHANGE_BYTES_MAX))])
        assert [change.number for change in await recent.wait_from(5)] == [5], "whoever waits for it gets it"

    asyncio.run(scenario())
