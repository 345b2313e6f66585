import asyncio
import uuid

import pytest

from headwater.logtier.config import BrokerConfig
from headwater.logtier.metadata import paths
from headwater.logtier.metadata.image import (
    BrokerRegistration,
    MetadataCache,
    MetadataDelta,
    MetadataImage,
    metadata_delta,
)
from headwater.logtier.metadata.store import Create, SetData
from headwater.logtier.metadata.topic_names import topic_name_problem
from headwater.logtier.metadata.topic_nodes import (
    CHUNK_PARTITIONS,
    PartitionImage,
    change_topic,
    chunk_path,
    encode_chunk,
    encode_topic,
    first_partition_state,
)
from tests.topic_images import topic_changes, topic_deletion

FIRST = uuid.UUID(int=11)
SECOND = uuid.UUID(int=12)


def with_topic(
    image: MetadataImage, name: str, topic_id: uuid.UUID, partitions: int = 1, **configs: str
) -> MetadataImage:
    changes = topic_changes(name, topic_id, [(1,)] * partitions)
    return image.apply([*changes, (paths.topic_config_path(name), paths.encode_config(configs))])


def test_an_image_is_made_of_nodes() -> None:
    image = MetadataImage().apply(
        [
            (paths.CLUSTER_ID, paths.encode_cluster_id("abc")),
            (paths.CONTROLLER, paths.encode_controller(1, 5)),
            (paths.known_broker_path(1), paths.encode_known_broker("host", 9092, None, 3)),
            (paths.known_broker_path(2), paths.encode_known_broker("other", 9092, None, 2, is_alive=False)),
            (paths.topic_config_path("t"), paths.encode_config({"retention.ms": "1"})),
            *topic_changes("t", FIRST, [(1, 2), (2, 1)]),
            (paths.PRODUCER_ID_BLOCK, paths.encode_producer_id_block(1, range(1000))),
        ]
    )
    assert (image.cluster_id, image.controller_id) == ("abc", 1)
    assert image.brokers == {1: BrokerRegistration(1, "host", 9092, None, 3)}
    assert image.registrations == {
        **image.brokers,
        2: BrokerRegistration(2, "other", 9092, None, 2, is_alive=False),
    }
    topic = image.topic("t")
    assert topic is not None
    assert topic is image.topic_by_id(FIRST)
    assert topic.partitions == (PartitionImage(1, 0, 0, (1, 2), (1, 2)), PartitionImage(2, 0, 0, (2, 1), (2, 1)))
    assert topic.configs == {"retention.ms": "1"}
    assert image.topic("u") is None
    assert image.topic_by_id(SECOND) is None


def test_a_change_leaves_the_old_image_as_it_was() -> None:
    old = with_topic(MetadataImage(), "t", FIRST)
    new = old.apply([(paths.topic_path("t"), None)])
    assert old.topic("t") is not None
    assert new.topic("t") is None
    assert new.topic_by_id(FIRST) is None
    assert new.collision_names == {}


def test_a_topic_created_again_is_another_topic() -> None:
    old = with_topic(MetadataImage(), "t", FIRST, retention="1")
    new = old.apply(
        [
            (paths.topic_path("t"), None),
            (paths.topic_config_path("t"), None),
            *topic_changes("t", SECOND, [(1,)]),
        ]
    )
    delta = metadata_delta(old, new)
    assert [topic.topic_id for topic in delta.deleted] == [FIRST]
    assert [topic.topic_id for topic in delta.created] == [SECOND]
    assert delta.changed == ()
    assert delta.created[0].configs == {}


def test_more_partitions_and_other_configs_are_a_change() -> None:
    old = with_topic(with_topic(MetadataImage(), "t", FIRST), "u", SECOND)
    grown = old.apply(topic_changes("t", FIRST, [(1,)] * 3))
    assert [len(topic.partitions) for topic in metadata_delta(old, grown).changed] == [3]
    configured = old.apply([(paths.topic_config_path("u"), paths.encode_config({"a": "b"}))])
    assert [topic.name for topic in metadata_delta(old, configured).changed] == ["u"]
    assert metadata_delta(old, old).changed == ()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"{}",
        b'{"version":4,"topic_id":"x","partitions":1}',
        b'{"version":4,"topic_id":"AAAAAAAAAAAAAAAAAAAACw","partitions":0}',
        b'{"version":4,"topic_id":"AAAAAAAAAAAAAAAAAAAACw"}',
        b'{"version":5,"topic_id":"AAAAAAAAAAAAAAAAAAAACw","partitions":1}',
        pytest.param(encode_topic(FIRST, 2), id="fewer partitions than it says"),
    ],
)
def test_a_node_that_cannot_be_read_is_named(data: bytes) -> None:
    state = (chunk_path("t", 0), encode_chunk([first_partition_state((1,))]))
    with pytest.raises(paths.CorruptNodeError, match="/brokers/topics/t"):
        MetadataImage().apply([(paths.topic_path("t"), data), state])


@pytest.mark.parametrize(
    "state",
    [
        "[[1],[1],1,0]",
        "[[1],[1],1,0,0,0]",
        "[[],[],-1,0,0]",
        "[[1,1],[1],1,0,0]",
        "[[1,2],[2,2],2,0,0]",
        "[[1,2],[3],1,0,0]",
        "[[1,2],[1],3,0,0]",
        "[[1],[1],1,-1,0]",
        '[["1"],["1"],"1",0,0]',
        "7",
    ],
)
def test_a_partition_state_that_contradicts_itself_is_named(state: str) -> None:
    data = b'{"version":1,"partitions":[%s]}' % state.encode()
    with pytest.raises(paths.CorruptNodeError, match="/brokers/topics/t/0"):
        MetadataImage().apply([(paths.topic_path("t"), encode_topic(FIRST, 1)), (chunk_path("t", 0), data)])


def test_a_state_without_its_topic_is_named() -> None:
    with pytest.raises(paths.CorruptNodeError, match="/brokers/topics/t"):
        MetadataImage().apply([(chunk_path("t", 0), encode_chunk([first_partition_state((1,))]))])


def test_a_change_of_one_partition_writes_its_chunk_and_leaves_the_others() -> None:
    count = 2 * CHUNK_PARTITIONS + 3
    old = with_topic(MetadataImage(), "t", FIRST, count)
    before = old.topics["t"].partitions
    changed = list(before)
    changed[CHUNK_PARTITIONS] = PartitionImage(-1, 5, 9, (1,), ())
    operations = change_topic("t", FIRST, before, tuple(changed))
    assert [operation.path for operation in operations] == [chunk_path("t", 1)]
    new = old.apply([(operation.path, operation.data) for operation in operations if isinstance(operation, SetData)])
    assert new.topics["t"].partitions == tuple(changed)
    assert [topic.name for topic in metadata_delta(old, new).changed] == ["t"]
    assert old.topics["t"].partitions == before


@pytest.mark.parametrize("count", [1, 2, CHUNK_PARTITIONS - 2, CHUNK_PARTITIONS, 3 * CHUNK_PARTITIONS])
def test_a_topic_that_grows_keeps_the_states_of_its_partitions(count: int) -> None:
    moved = PartitionImage(2, 7, 3, (1, 2), (2,))
    first = CHUNK_PARTITIONS - 1
    changes = topic_changes("t", FIRST, [(1, 2)] * first)
    changes.append((chunk_path("t", 0), encode_chunk([moved] * first)))
    old = MetadataImage().apply(changes)
    grown = (*old.topics["t"].partitions, *[first_partition_state((1, 2))] * count)
    operations = change_topic("t", FIRST, old.topics["t"].partitions, grown)
    new = old.apply([(each.path, each.data) for each in operations if isinstance(each, Create | SetData)])
    assert new.topics["t"].partitions == grown
    assert new.topic_by_id(FIRST) is new.topics["t"]
    gone = new.apply(topic_deletion(new, "t"))
    assert (gone.topics, gone.topic_names, gone.collision_names) == ({}, {}, {})


def test_subscribers_know_of_a_change_before_publish_returns() -> None:
    cache = MetadataCache(BrokerConfig.from_properties())
    seen: list[MetadataDelta] = []
    cache.subscribe(seen.append)
    image = with_topic(MetadataImage(), "t", FIRST)
    cache.publish(image)
    assert cache.image is image
    assert [topic.name for topic in seen[0].created] == ["t"]


def test_a_failing_subscriber_does_not_keep_the_others_from_knowing() -> None:
    cache = MetadataCache(BrokerConfig.from_properties())
    seen: list[MetadataDelta] = []

    def fail(delta: MetadataDelta) -> None:
        raise OSError("disk full")

    cache.subscribe(fail)
    cache.subscribe(seen.append)
    with pytest.raises(OSError, match="disk full"):
        cache.publish(with_topic(MetadataImage(), "t", FIRST))
    assert len(seen) == 1


def test_a_change_is_seen_by_nobody_until_it_is_prepared() -> None:
    cache = MetadataCache(BrokerConfig.from_properties())
    happened: list[str] = []

    async def prepare(delta: MetadataDelta) -> None:
        happened.append(f"prepare {delta.created[0].name}")
        await asyncio.sleep(0)
        assert cache.image.topic("t") is None

    cache.prepare_with(prepare)
    cache.subscribe(lambda delta: happened.append(f"take over {delta.created[0].name}"))
    asyncio.run(cache.advance(with_topic(MetadataImage(), "t", FIRST)))
    assert happened == ["prepare t", "take over t"]


def test_a_change_that_cannot_be_prepared_is_published_all_the_same(caplog: pytest.LogCaptureFixture) -> None:
    cache = MetadataCache(BrokerConfig.from_properties())

    async def fail(_: MetadataDelta) -> None:
        raise OSError("no thread to be had")

    cache.prepare_with(fail)
    image = with_topic(MetadataImage(), "t", FIRST)
    asyncio.run(cache.advance(image))
    assert cache.image is image
    assert "could not be prepared" in caplog.text


def test_dynamic_broker_configs_are_the_defaults_of_topics() -> None:
    cache = MetadataCache(BrokerConfig.from_properties({"node.id": 1, "log.retention.ms": "7"}))
    image = with_topic(MetadataImage(), "t", FIRST)
    cache.publish(image)
    assert cache.topic_config(image.topics["t"]).retention_ms == 7
    changes: list[MetadataDelta] = []
    cache.subscribe(changes.append)
    cache.publish(
        image.apply(
            [
                (paths.broker_config_path("<default>"), paths.encode_config({"log.retention.ms": "8"})),
                (paths.broker_config_path("2"), paths.encode_config({"log.retention.ms": "9"})),
            ]
        )
    )
    assert [topic.name for topic in changes[0].changed] == ["t"]
    assert cache.topic_config(image.topics["t"]).retention_ms == 8
    assert cache.config.log_retention_ms == 8
    assert cache.static_config.log_retention_ms == 7


def test_a_dynamic_config_that_no_longer_fits_the_static_ones_is_passed_over_and_told_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cache = MetadataCache(BrokerConfig.from_properties({"node.id": 1, "socket.request.max.bytes": "50000000"}))
    path = paths.broker_config_path("1")
    for retention_ms in ("8", "9"):
        stored = {"message.max.bytes": "90000000", "log.retention.ms": retention_ms}
        cache.publish(cache.image.apply([(path, paths.encode_config(stored))]))
        assert (cache.config.message_max_bytes, cache.config.log_retention_ms) == (1_048_588, int(retention_ms))
    [record] = caplog.records
    assert record.levelname == "ERROR"
    assert "message.max.bytes (90000000) is above socket.request.max.bytes (50000000)" in record.getMessage()


def test_derived_bytes_are_dropped_with_their_image() -> None:
    cache = MetadataCache(BrokerConfig.from_properties())
    made = []

    def make() -> bytes:
        made.append(1)
        return b"x"

    for _ in range(3):
        assert cache.derived("key", make) == b"x"
    cache.publish(MetadataImage())
    cache.derived("key", make)
    assert len(made) == 2
    for key in range(1000):
        cache.derived(key, make)
    assert len(cache._derived) <= 64


@pytest.mark.parametrize("name", ["a", "A.b_c-9", "x" * 249, "...", "__consumer_offsets"])
def test_legal_topic_names(name: str) -> None:
    assert topic_name_problem(name) is None


@pytest.mark.parametrize("name", ["", ".", "..", "x" * 250, "a b", "a/b", "ä", "a\n", "a\0"])
def test_illegal_topic_names(name: str) -> None:
    assert topic_name_problem(name) is not None
