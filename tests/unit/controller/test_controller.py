import asyncio
import random
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path

import orjson
import pytest

from headwater.logtier.config import BrokerConfig
from headwater.logtier.controller.bootstrap import bootstrap
from headwater.logtier.controller.commands import ConfigChange, ConfigOperation, NewPartitions, NewTopic
from headwater.logtier.controller.controller import Controller
from headwater.logtier.metadata import paths
from headwater.logtier.metadata.follower import MetadataFollower
from headwater.logtier.metadata.image import MetadataCache, MetadataDelta
from headwater.logtier.metadata.local import LocalMetadataStore
from headwater.logtier.metadata.store import NoNodeError, StoredNode, StoreUnavailableError
from headwater.logtier.metadata.topic_nodes import PartitionImage, chunk_path, decode_chunk
from headwater.logtier.protocol import uuids
from headwater.logtier.protocol.errors import ErrorCode, KafkaError
from headwater.logtier.runtime.clock import SystemClock
from headwater.logtier.runtime.disk import RealDisk
from headwater.logtier.runtime.random_bytes import system_random_bytes

Step = Callable[[Controller, MetadataCache, LocalMetadataStore], Awaitable[None]]


def run(directory: Path, *steps: Step, seed: int = 1, clean: bool = True) -> None:
    """Each step on a controller of its own, with a restart between them; without `clean` a kill."""

    async def main() -> None:
        for step in steps:
            config = BrokerConfig.from_properties({"node.id": 1})
            store = LocalMetadataStore(str(directory), RealDisk())
            await store.start()
            cache = MetadataCache(config)
            follower = MetadataFollower(store, cache)
            controller = Controller(config, SystemClock(), random.Random(seed), store, follower)
            await bootstrap(store, random.Random(1), system_random_bytes)
            await follower.start()
            await controller.start()
            await controller.register_broker(1, "localhost", 9092)
            try:
                await step(controller, cache, store)
            finally:
                if clean:
                    await controller.stop()
                await follower.stop()
                await store.close()

    asyncio.run(main())


def test_topics_and_configs_survive_a_restart(tmp_path: Path) -> None:
    kept: dict[str, object] = {}
    epochs: list[int] = []

    async def create(controller: Controller, cache: MetadataCache, store: LocalMetadataStore) -> None:
        await controller.create_topics([NewTopic("t", 3, configs={"retention.ms": "5"}), NewTopic("gone")])
        await controller.create_partitions([NewPartitions("t", 5)])
        await controller.delete_topics(["gone"])
        change = ConfigChange(2, "t", [ConfigOperation("segment.bytes", 0, "100")])
        await controller.alter_configs([change])
        assert {(each.leader, each.isr) for each in cache.image.topics["t"].partitions} == {(1, (1,))}
        kept["id"] = cache.image.topics["t"].topic_id
        epochs.append(cache.image.topics["t"].partitions[0].leader_epoch)
        kept["cluster"] = cache.image.cluster_id

    async def check(controller: Controller, cache: MetadataCache, store: LocalMetadataStore) -> None:
        assert list(cache.image.topics) == ["t"]
        topic = cache.image.topics["t"]
        epochs.append(topic.partitions[0].leader_epoch)
        assert {partition.leader_epoch for partition in topic.partitions} == set(epochs[-1:])
        assert {(each.leader, each.isr) for each in topic.partitions} == {(1, (1,))}
        assert topic.topic_id == kept["id"]
        assert len(topic.partitions) == 5
        assert topic.configs == {"retention.ms": "5", "segment.bytes": "100"}
        assert cache.image.cluster_id == kept["cluster"]
        assert cache.image.controller_id == 1

    run(tmp_path, create, check, check, clean=False)
    # Each start is an election (KIP-320).
    assert epochs == [0, 1, 2]


def test_elections_are_stored(tmp_path: Path) -> None:
    states: list[object] = []

    async def create(controller: Controller, cache: MetadataCache, store: LocalMetadataStore) -> None:
        await controller.create_topics([NewTopic("t", 70)])

    async def read(controller: Controller, cache: MetadataCache, store: LocalMetadataStore) -> None:
        stored: list[PartitionImage] = []
        for chunk in (0, 1):
            path = chunk_path("t", chunk)
            stored += decode_chunk(path, (await store.get(path)).data)
        assert tuple(stored) == cache.image.topics["t"].partitions
        states.append({(each.leader_epoch, each.partition_epoch) for each in stored})

    run(tmp_path, create, read, read, clean=False)
    assert states == [{(1, 1)}, {(2, 2)}]


def test_a_new_address_of_a_broker_that_has_not_been_away_causes_no_election(tmp_path: Path) -> None:
    async def step(controller: Controller, cache: MetadataCache, store: LocalMetadataStore) -> None:
        await controller.create_topics([NewTopic("t")])
        before = cache.image.topics["t"]
        await controller.register_broker(1, "elsewhere", 9093)
        assert cache.image.brokers[1].host == "elsewhere"
        assert cache.image.topics["t"] is before

    run(tmp_path, step)


def test_topics_of_a_version_without_states_get_the_epoch_of_the_controller(tmp_path: Path) -> None:
    """That version led in the epoch before the controller's, and a consumer may know of it."""
    topic_id = uuid.UUID(int=77)
    partitions = {str(index): [1] for index in range(65)}
    data = orjson.dumps({"version": 3, "topic_id": uuids.to_text(topic_id), "partitions": partitions})

    async def earlier(controller: Controller, cache: MetadataCache, store: LocalMetadataStore) -> None:
        await store.create(paths.topic_path("t"), data)
        await store.delete(paths.known_broker_path(1))

    async def check(controller: Controller, cache: MetadataCache, store: LocalMetadataStore) -> None:
        topic = cache.image.topics["t"]
        assert topic.topic_id == topic_id
        assert len(topic.partitions) == 65
        assert {(each.leader, each.replicas, each.isr) for each in topic.partitions} == {(1, (1,), (1,))}
        assert {each.leader_epoch for each in topic.partitions} == {3}
        await controller.create_partitions([NewPartitions("t", 66)])

    async def again(controller: Controller, cache: MetadataCache, store: LocalMetadataStore) -> None:
        epochs = [each.leader_epoch for each in cache.image.topics["t"].partitions]
        assert epochs == [4] * 65 + [1]

    run(tmp_path, earlier, check, again, clean=False)


@pytest.mark.parametrize(
    "data", [b"x", b"{}", b'{"version":3,"topic_id":"x","partitions":{"0":[1]}}', b'{"version":3}']
)
def test_a_damaged_topic_ends_the_start_with_its_path(tmp_path: Path, data: bytes) -> None:
    async def spoil(controller: Controller, cache: MetadataCache, store: LocalMetadataStore) -> None:
        await store.create(paths.topic_path("t"), data)

    async def never(controller: Controller, cache: MetadataCache, store: LocalMetadataStore) -> None:
        raise AssertionError

    with pytest.raises(paths.CorruptNodeError, match="/brokers/topics/t"):
        run(tmp_path, spoil, never)


def test_a_command_returns_when_subscribers_know(tmp_path: Path) -> None:
    async def step(controller: Controller, cache: MetadataCache, store: LocalMetadataStore) -> None:
        seen: list[MetadataDelta] = []
        cache.subscribe(seen.append)
        await controller.create_topics([NewTopic("t"), NewTopic("u")])
        assert [topic.name for topic in seen[-1].created] == ["t", "u"]
        await controller.delete_topics(["t"])
        assert [topic.name for topic in seen[-1].deleted] == ["t"]

    run(tmp_path, step)


def test_validating_only_changes_nothing(tmp_path: Path) -> None:
    async def step(controller: Controller, cache: MetadataCache, store: LocalMetadataStore) -> None:
        result = (await controller.create_topics([NewTopic("t")], validate_only=True))[0]
        assert result.error is None
        assert result.topic is not None
        assert cache.image.topics == {}
        await controller.create_topics([NewTopic("t")])
        await controller.create_partitions([NewPartitions("t", 9)], validate_only=True)
        change = ConfigChange(2, "t", [ConfigOperation("segment.bytes", 0, "100")])
        await controller.alter_configs([change], validate_only=True)
        assert len(cache.image.topics["t"].partitions) == 1
        assert cache.image.topics["t"].configs == {}

    run(tmp_path, step)


def test_concurrent_creations_of_one_topic_make_it_once(tmp_path: Path) -> None:
    async def step(controller: Controller, cache: MetadataCache, store: LocalMetadataStore) -> None:
        results = await asyncio.gather(*(controller.create_topics([NewTopic("t")]) for _ in range(5)))
        codes = [result[0].error.code if result[0].error else ErrorCode.none for result in results]
        assert sorted(codes) == [ErrorCode.none] + [ErrorCode.topic_already_exists] * 4

    run(tmp_path, step)


def test_a_topic_created_again_has_another_id(tmp_path: Path) -> None:
    async def step(controller: Controller, cache: MetadataCache, store: LocalMetadataStore) -> None:
        ids = set()
        for _ in range(3):
            await controller.create_topics([NewTopic("t", configs={"retention.ms": "5"})])
            ids.add(cache.image.topics["t"].topic_id)
            await controller.delete_topics(["t"])
        assert len(ids) == 3

    # The same seed gives the same ids in each life: those in use must not come again.
    run(tmp_path, step, step)


def test_producer_ids_are_never_given_out_twice_though_the_broker_is_killed(tmp_path: Path) -> None:
    given: list[int] = []

    async def step(controller: Controller, cache: MetadataCache, store: LocalMetadataStore) -> None:
        given.extend(await asyncio.gather(*(controller.producer_ids.next() for _ in range(1500))))

    run(tmp_path, step, step, step, clean=False)
    assert len(set(given)) == 4500
    assert given[0] == 0
    assert max(given) < 6000


def test_blocks_of_producer_ids_do_not_overlap(tmp_path: Path) -> None:
    async def step(controller: Controller, cache: MetadataCache, store: LocalMetadataStore) -> None:
        blocks = await asyncio.gather(*(controller.allocate_producer_ids(10) for _ in range(5)))
        assert sorted(number for block in blocks for number in block) == list(range(50))

    run(tmp_path, step)


def test_a_controller_that_was_replaced_writes_nothing(tmp_path: Path) -> None:
    """KAFKA-6082: writes were not fenced by the controller's epoch, and a replaced one overwrote its successor's."""

    async def step(controller: Controller, cache: MetadataCache, store: LocalMetadataStore) -> None:
        await store.set(paths.CONTROLLER_EPOCH, b"99")
        for _ in range(2):
            error = (await controller.create_topics([NewTopic("t")]))[0].error
            assert error is not None
            assert error.code is ErrorCode.not_controller
        assert not await store.exists("/brokers/topics/t")
        with pytest.raises(KafkaError, match="not_controller"):
            await controller.allocate_producer_ids()

    run(tmp_path, step)


def test_kafka_6082_a_controller_that_was_replaced_does_not_depose_its_successor(tmp_path: Path) -> None:
    """KAFKA-6082: a replaced controller resigned by deleting `/controller`, which was its successor's by then."""

    async def step(controller: Controller, cache: MetadataCache, store: LocalMetadataStore) -> None:
        await store.set(paths.CONTROLLER_EPOCH, b"99")
        assert controller.is_active, "it has not heard of it"
        await controller.stop()
        assert await store.exists(paths.CONTROLLER)

    run(tmp_path, step)


def test_kafka_6082_an_election_that_is_overtaken_leaves_no_controller_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """KAFKA-6082: `/controller` was created first and the epoch raised later; between the two another broker could be
    elected, and both acted as controller in one epoch.
    """

    async def step(controller: Controller, cache: MetadataCache, store: LocalMetadataStore) -> None:
        await controller.stop()
        get = store.get

        async def get_and_be_overtaken(path: str) -> StoredNode:
            node = await get(path)
            if path == paths.CONTROLLER_EPOCH:
                await store.set(path, b"99")
            return node

        monkeypatch.setattr(store, "get", get_and_be_overtaken)
        assert not await controller.elect()
        assert not controller.is_active
        assert not await store.exists(paths.CONTROLLER)
        monkeypatch.setattr(store, "get", get)
        assert await controller.elect()
        assert controller.epoch == 100

    run(tmp_path, step)


def test_there_is_one_controller_of_a_store(tmp_path: Path) -> None:
    async def step(controller: Controller, cache: MetadataCache, store: LocalMetadataStore) -> None:
        follower = MetadataFollower(store, cache)
        second = Controller(BrokerConfig.from_properties(), SystemClock(), random.Random(2), store, follower)
        with pytest.raises(StoreUnavailableError, match="another broker is controller"):
            await second.start()
        await controller.create_topics([NewTopic("t")])

    run(tmp_path, step)


def test_each_controller_has_an_epoch_of_its_own(tmp_path: Path) -> None:
    epochs = []
    broker_epochs = []

    async def step(controller: Controller, cache: MetadataCache, store: LocalMetadataStore) -> None:
        epochs.append(controller.epoch)
        broker_epochs.append(cache.image.brokers[1].epoch)
        assert (await store.get(paths.broker_path(1))).czxid == broker_epochs[-1]

    run(tmp_path, step, step, step)
    assert epochs == [1, 2, 3]
    assert sorted(set(broker_epochs)) == broker_epochs


def test_a_broker_may_register_again_at_another_address(tmp_path: Path) -> None:
    async def step(controller: Controller, cache: MetadataCache, store: LocalMetadataStore) -> None:
        await controller.register_broker(1, "elsewhere", 9093, "rack")
        assert cache.image.brokers[1].host == "elsewhere"
        assert cache.image.brokers[1].rack == "rack"

    run(tmp_path, step)


DAMAGED_BLOCKS = [
    b"",
    b"{",
    b"[]",
    b"{}",
    b'{"version":1,"broker":1,"block_end":"999"}',
    b'{"version":1,"broker":1,"block_start":"0","block_end":"many"}',
    b'{"version":1,"broker":1,"block_start":"0","block_end":null}',
    b'{"version":1,"broker":1,"block_start":"1000","block_end":"0"}',
    b'{"version":1,"broker":1,"block_start":"0","block_end":"9223372036854775808"}',
    b'{"version":1,"broker":1,"block_start":"0","block_end":1e999}',
]


@pytest.mark.parametrize("data", DAMAGED_BLOCKS)
def test_a_damaged_block_of_producer_ids_is_an_error_that_clients_do_not_retry(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, data: bytes
) -> None:
    async def step(controller: Controller, cache: MetadataCache, store: LocalMetadataStore) -> None:
        await controller.allocate_producer_ids()
        sound = (await store.get(paths.PRODUCER_ID_BLOCK)).data
        await store.set(paths.PRODUCER_ID_BLOCK, data)
        with pytest.raises(KafkaError) as caught:
            await controller.producer_ids.next()
        assert caught.value.code is ErrorCode.unknown_server_error
        [record] = [each for each in caplog.records if paths.PRODUCER_ID_BLOCK in each.getMessage()]
        assert record.exc_info is None
        assert "write a block above every producer id in use to it" in record.getMessage()
        assert (await store.get(paths.PRODUCER_ID_BLOCK)).data == data
        await store.set(paths.PRODUCER_ID_BLOCK, sound)
        assert await controller.producer_ids.next() == 1000

    run(tmp_path, step)


def test_the_block_that_a_damaged_node_asks_for_can_be_read(tmp_path: Path) -> None:
    with pytest.raises(paths.CorruptNodeError) as caught:
        paths.decode_producer_id_block(b"")
    example = caught.value.remedy[caught.value.remedy.index("{") : caught.value.remedy.index("}") + 1]
    assert len(paths.decode_producer_id_block(example.encode())) == 1000


def test_producer_ids_that_are_used_up_are_an_error(tmp_path: Path) -> None:
    async def step(controller: Controller, cache: MetadataCache, store: LocalMetadataStore) -> None:
        await store.create(paths.PRODUCER_ID_BLOCK, paths.encode_producer_id_block(1, range(2**63 - 1000, 2**63)))
        with pytest.raises(KafkaError, match="all producer ids are used up") as caught:
            await controller.producer_ids.next()
        assert caught.value.code is ErrorCode.unknown_server_error

    run(tmp_path, step)


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (StoreUnavailableError("/", "no space left"), ErrorCode.kafka_storage_error),
        (NoNodeError("/brokers", "emptied by somebody"), ErrorCode.kafka_storage_error),
        (paths.CorruptNodeError("/changes", b"damage"), ErrorCode.unknown_server_error),
    ],
)
def test_a_store_that_fails_becomes_the_error_of_each_topic(
    tmp_path: Path, failure: Exception, code: ErrorCode
) -> None:
    async def step(controller: Controller, cache: MetadataCache, store: LocalMetadataStore) -> None:
        async def fail(operations: object) -> int:
            raise failure

        store.append = fail  # type: ignore[method-assign]
        results = await controller.create_topics([NewTopic("t"), NewTopic("u")])
        with pytest.raises(KafkaError) as caught:
            await controller.allocate_producer_ids()
        assert caught.value.code is code
        assert [(result.name, result.error and result.error.code) for result in results] == [
            ("t", code),
            ("u", code),
        ]
        del store.append
        assert (await controller.create_topics([NewTopic("t")]))[0].error is None

    run(tmp_path, step)


def test_a_disk_that_cannot_follow_a_change_becomes_the_error_of_each_topic(tmp_path: Path) -> None:
    async def step(controller: Controller, cache: MetadataCache, store: LocalMetadataStore) -> None:
        def fail(delta: MetadataDelta) -> None:
            raise OSError(28, "No space left on device")

        cache.subscribe(fail)
        error = (await controller.create_topics([NewTopic("t")]))[0].error
        assert error is not None
        assert (error.code, error.message) == (ErrorCode.kafka_storage_error, "No space left on device")

    run(tmp_path, step)


def test_a_cancelled_caller_does_not_leave_image_and_store_apart(tmp_path: Path) -> None:
    async def step(controller: Controller, cache: MetadataCache, store: LocalMetadataStore) -> None:
        task = asyncio.ensure_future(controller.create_topics([NewTopic("t")]))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await controller.create_topics([NewTopic("u")])
        assert sorted(cache.image.topics) == ["t", "u"]

    run(tmp_path, step)


def test_the_secret_that_hides_who_is_no_user_is_made_once_and_kept(tmp_path: Path) -> None:
    made: list[bytes] = []

    async def note(controller: Controller, cache: MetadataCache, store: LocalMetadataStore) -> None:
        made.append(cache.image.unknown_users_key)
        assert repr(made[0]) not in repr(cache.image)

    async def lose(controller: Controller, cache: MetadataCache, store: LocalMetadataStore) -> None:
        """As in the metadata of a version before it."""
        await store.delete(paths.UNKNOWN_USERS_KEY)

    run(tmp_path, note, note, lose, note)
    run(tmp_path / "other", note)
    assert [len(key) for key in made] == [32] * 4
    assert made[0] == made[1] != made[2]
    assert made[3] not in made[:3], "it is not drawn by what a test can repeat"


def test_a_secret_that_cannot_be_read_is_not_shown(tmp_path: Path) -> None:
    async def spoil(controller: Controller, cache: MetadataCache, store: LocalMetadataStore) -> None:
        await store.set(paths.UNKNOWN_USERS_KEY, b'{"version":1,"key":"hush"!}')

    async def never(controller: Controller, cache: MetadataCache, store: LocalMetadataStore) -> None:
        raise AssertionError

    with pytest.raises(paths.CorruptNodeError, match="hidden") as told:
        run(tmp_path, spoil, never)
    assert "hush" not in str(told.value)


def test_a_log_that_cannot_be_created_does_not_keep_a_broker_from_registering(tmp_path: Path) -> None:
    """Its partitions are elected anew at each start, and a full disk must not end the others with it."""

    async def refuse(controller: Controller, cache: MetadataCache, store: LocalMetadataStore) -> None:
        await controller.create_topics([NewTopic("t")])

        def fail(delta: MetadataDelta) -> None:
            raise OSError(28, "No space left on device")

        cache.subscribe(fail)
        await controller.register_broker(1, "elsewhere", 9093)
        assert cache.image.brokers[1].host == "elsewhere"

    run(tmp_path, refuse)
