"""The metadata of a single node in a store that brokers share."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from headwater.logtier.config import BrokerConfig, Endpoint
from headwater.logtier.controller.bootstrap import bootstrap
from headwater.logtier.metadata import paths
from headwater.logtier.metadata.carried_nodes import (
    CARRIED_EPOCH,
    CarriedNodes,
    EarlierMetadataError,
    OtherBrokerError,
    carry_nodes,
)
from headwater.logtier.metadata.follower import MetadataFollower
from headwater.logtier.metadata.image import MetadataCache, MetadataImage
from headwater.logtier.metadata.journal_entries import read_local_nodes
from headwater.logtier.metadata.local import LocalMetadataStore
from headwater.logtier.metadata.node_copy import IncompleteCopyError, copy_nodes
from headwater.logtier.metadata.shared_store import CHANGES, SharedMetadataStore
from headwater.logtier.metadata.store import (
    MULTI_BYTES_MAX,
    Create,
    Delete,
    NodeExistsError,
    SetData,
    StoreUnavailableError,
)
from headwater.logtier.metadata.topic_nodes import PartitionImage, create_topic
from headwater.logtier.runtime.disk import RealDisk

TOPIC_ID = uuid.UUID(int=11)
LARGE_BYTES = MULTI_BYTES_MAX + 1


def run(folder: Path, scenario: Callable[[LocalMetadataStore], Awaitable[None]]) -> None:
    async def main() -> None:
        store = LocalMetadataStore(str(folder), RealDisk())
        await store.start()
        try:
            await scenario(store)
        finally:
            await store.close()

    asyncio.run(main())


async def fill(store: LocalMetadataStore) -> None:
    """Nodes of each kind, changed some times, as a broker would leave them."""
    await bootstrap(store, random.Random(1), random.Random(1).randbytes)
    states = [PartitionImage(1, 5, 9, (1,), (1,)) for _ in range(70)]
    await store.append(create_topic("flights", TOPIC_ID, states))
    address = Endpoint("PLAINTEXT", "127.0.0.1", 9092)
    known = paths.encode_known_broker("127.0.0.1", 9092, "a", (7 << 32) + 3, [address])
    await store.append([Create(paths.known_broker_path(1), known)])
    await store.append([SetData(paths.CONTROLLER_EPOCH, b"7")])
    await store.append(
        [
            Create(paths.topic_config_path("flights"), paths.encode_config({"cleanup.policy": "compact"})),
            Create(paths.broker_config_path("1"), paths.encode_config({"log.cleaner.threads": "1"})),
            Create(paths.group_config_path("a/b"), paths.encode_config({"consumer.session.timeout.ms": "50000"})),
            Create(paths.PRODUCER_ID_BLOCK, paths.encode_producer_id_block(1, range(3000, 4000))),
            Create(paths.deleted_topic_path(uuid.UUID(int=12)), paths.encode_deleted_topic(17)),
        ]
    )
    await store.create(paths.broker_path(1), b"", ephemeral=True)


def carried(folder: Path) -> CarriedNodes:
    return carry_nodes(read_local_nodes(RealDisk(), str(folder)), 1)


def test_every_node_is_carried_and_followed_in_the_shared_store(tmp_path: Path) -> None:
    local, shared = tmp_path / "local", tmp_path / "shared"
    ends: list[int] = []
    images: list[MetadataImage] = []

    async def make(store: LocalMetadataStore) -> None:
        await fill(store)
        ends.append(store.end_offset)
        follower = MetadataFollower(store, MetadataCache(BrokerConfig.from_properties({})))
        await follower.start()
        images.append(follower.image)
        await follower.stop()

    async def take_over(store: LocalMetadataStore) -> None:
        await copy_nodes(store, carried(local).creates)
        changes = SharedMetadataStore(store)
        follower = MetadataFollower(changes, MetadataCache(BrokerConfig.from_properties({})))
        await follower.start()
        images.append(follower.image)
        # Numbers of changes continue: a broker compares them with those that it has applied.
        assert changes.end_offset == ends[0]
        assert await changes.append([SetData(paths.CONTROLLER_EPOCH, b"8")]) == ends[0]
        await follower.reached(ends[0])
        await follower.stop()
        assert paths.decode_producer_id_block((await store.get(paths.PRODUCER_ID_BLOCK)).data) == range(3000, 4000)
        assert not await store.exists(paths.broker_path(1))

    run(local, make)
    run(shared, take_over)
    before, after = images
    known = replace(before.registrations[1], epoch=CARRIED_EPOCH)
    assert after == replace(before, registrations={1: known}, brokers={1: known})
    assert (known.host, known.rack, after.topics["flights"].topic_id) == ("127.0.0.1", "a", TOPIC_ID)
    assert len(after.topics["flights"].partitions) == 70


@pytest.mark.parametrize(
    ("topic", "minimum", "carried_minimum"),
    [
        ("__transaction_state", "1", None),
        ("__transaction_state", "2", "2"),
        ("__consumer_offsets", "1", "1"),  # its user's
        ("flights", "1", "1"),
    ],
)
def test_the_transaction_topic_takes_the_minimum_of_the_cluster(
    tmp_path: Path, topic: str, minimum: str, carried_minimum: str | None
) -> None:
    async def make(store: LocalMetadataStore) -> None:
        await fill(store)
        configs = paths.encode_config({"segment.bytes": "1048576", "min.insync.replicas": minimum})
        if topic == "flights":
            await store.set(paths.topic_config_path(topic), configs)
        else:
            created = create_topic(topic, uuid.UUID(int=14), [PartitionImage(1, 0, 0, (1,), (1,))])
            await store.append([*created, Create(paths.topic_config_path(topic), configs)])

    run(tmp_path, make)
    configs = carried(tmp_path).image.topics[topic].configs
    assert configs.get("min.insync.replicas") == carried_minimum
    assert configs["segment.bytes"] == "1048576"


def test_a_topic_whose_only_config_is_dropped_has_no_node_of_configs(tmp_path: Path) -> None:
    async def make(store: LocalMetadataStore) -> None:
        await fill(store)
        created = create_topic("__transaction_state", uuid.UUID(int=14), [PartitionImage(1, 0, 0, (1,), (1,))])
        configs = Create(
            paths.topic_config_path("__transaction_state"), paths.encode_config({"min.insync.replicas": "1"})
        )
        await store.append([*created, configs])

    run(tmp_path, make)
    # Else the next config of the topic would fail: the node of a topic without configs is created.
    assert paths.topic_config_path("__transaction_state") not in {create.path for create in carried(tmp_path).creates}


def test_what_a_killed_node_has_not_confirmed_is_not_carried(tmp_path: Path) -> None:
    run(tmp_path, fill)
    whole = carried(tmp_path)
    journal = tmp_path / "journal"
    journal.write_bytes(journal.read_bytes() + journal.read_bytes()[-9:])
    size = journal.stat().st_size
    assert carried(tmp_path) == whole
    assert journal.stat().st_size == size  # read, not mended


def test_a_missing_journal_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailableError, match="the metadata journal cannot be read: No such file"):
        carried(tmp_path)


@pytest.mark.parametrize("path", [paths.SCRAM_USERS, paths.UNKNOWN_USERS_KEY, paths.DELETED_TOPICS])
def test_nodes_without_a_first_node_are_of_an_earlier_version(tmp_path: Path, path: str) -> None:
    async def make(store: LocalMetadataStore) -> None:
        await fill(store)
        for name in await store.children(path):
            await store.delete(f"{path}/{name}")
        await store.delete(path)

    run(tmp_path, make)
    with pytest.raises(EarlierMetadataError, match=f"{path} is missing"):
        carried(tmp_path)


def test_replicas_on_other_brokers_are_refused(tmp_path: Path) -> None:
    async def make(store: LocalMetadataStore) -> None:
        await fill(store)
        await store.append(create_topic("spread", uuid.UUID(int=13), [PartitionImage(1, 0, 0, (1, 2), (1,))]))

    run(tmp_path, make)
    with pytest.raises(OtherBrokerError, match=r"partition spread-0 has the replicas \[1, 2\]"):
        carried(tmp_path)


def test_a_damaged_block_of_producer_ids_is_refused(tmp_path: Path) -> None:
    async def make(store: LocalMetadataStore) -> None:
        await fill(store)
        await store.set(paths.PRODUCER_ID_BLOCK, b"{}")

    run(tmp_path, make)
    with pytest.raises(paths.CorruptNodeError, match="latest_producer_id_block"):
        carried(tmp_path)


def test_a_copy_may_be_larger_than_a_transaction(tmp_path: Path) -> None:
    creates = [Create("/a", bytes(LARGE_BYTES)), *(Create(f"/a/{number}", bytes(90_000)) for number in range(20))]

    async def copy(store: LocalMetadataStore) -> None:
        await copy_nodes(store, creates)
        assert len(await store.children("/a")) == 20
        assert (await store.get("/a")).data == bytes(LARGE_BYTES)

    run(tmp_path, copy)


def test_a_copy_into_a_store_with_nodes_fails(tmp_path: Path) -> None:
    async def copy(store: LocalMetadataStore) -> None:
        await store.multi([Create("/zookeeper", b""), Create("/zookeeper/quota", b"")])
        await copy_nodes(store, [Create("/a", b"1"), Create("/a/b", b"")])
        with pytest.raises(NodeExistsError):
            await copy_nodes(store, [Create("/a", b"1"), Create("/a/b", b"")])
        await store.multi([Delete("/a/b"), Delete("/a"), Create("/other", b"")])
        with pytest.raises(IncompleteCopyError, match="/other: the store has a node that was not copied"):
            await copy_nodes(store, [Create("/a", b"1")])

    run(tmp_path, copy)


def test_a_node_that_differs_is_noticed(tmp_path: Path) -> None:
    class Forgetful(LocalMetadataStore):
        async def create(self, path: str, data: bytes, *, ephemeral: bool = False) -> int:
            return await super().create(path, data[:-1], ephemeral=ephemeral)

    async def main() -> None:
        store = Forgetful(str(tmp_path), RealDisk())
        await store.start()
        with pytest.raises(IncompleteCopyError, match="differs from the original"):
            await copy_nodes(store, [Create(CHANGES, b"12")])
        await store.close()

    asyncio.run(main())
