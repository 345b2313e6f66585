import uuid
from collections.abc import Callable, Collection

import pytest

from headwater.logtier.config import BrokerConfig
from headwater.logtier.controller.commands import NewPartitions, NewTopic
from headwater.logtier.controller.live_brokers import LiveBrokers
from headwater.logtier.controller.placement import assign_replicas
from headwater.logtier.controller.state import (
    MAX_PARTITIONS_PER_REQUEST,
    TOMBSTONE_MS,
    plan_create_partitions,
    plan_create_topics,
    plan_delete_topics,
)
from headwater.logtier.metadata import paths
from headwater.logtier.metadata.image import MetadataImage
from headwater.logtier.metadata.store import Create, Delete, SetData
from headwater.logtier.metadata.topic_nodes import PartitionImage, decode_chunk, decode_topic
from headwater.logtier.protocol.errors import ErrorCode
from tests.topic_images import topic_changes

CONFIG = BrokerConfig.from_properties({"num.partitions": 3})
NOW_MS = 1_700_000_000_000


def draw_ids() -> Callable[[], uuid.UUID]:
    numbers = iter(range(100, 10_000))
    return lambda: uuid.UUID(int=next(numbers))


def image_of(*names: str, brokers: int = 1, away: Collection[int] = (), partitions: int = 2) -> MetadataImage:
    changes: list[tuple[str, bytes | None]] = [
        (paths.known_broker_path(broker), paths.encode_known_broker("h", 1, None, 0, is_alive=broker not in away))
        for broker in range(1, brokers + 1)
    ]
    for index, name in enumerate(names):
        changes += topic_changes(name, uuid.UUID(int=10 + index), [(1,)] * partitions)
    return MetadataImage().apply(changes)


def create(image: MetadataImage, *topics: NewTopic) -> list[tuple[str, ErrorCode, str]]:
    plan = plan_create_topics(image, LiveBrokers(image), CONFIG, topics, draw_ids(), lambda _: 0)
    return [
        (
            result.name,
            result.error.code if result.error else ErrorCode.none,
            result.error.message if result.error else "",
        )
        for result in plan.results
    ]


def test_a_topic_gets_the_brokers_defaults_and_its_own_configs() -> None:
    image = image_of()
    topics = [NewTopic("t", configs={"retention.ms": "5"})]
    plan = plan_create_topics(image, LiveBrokers(image), CONFIG, topics, draw_ids(), lambda _: 0)
    assert [type(operation) for operation in plan.operations] == [Create, Create, Create]
    assert [operation.path for operation in plan.operations] == [
        "/brokers/topics/t",
        "/brokers/topics/t/0",
        "/config/topics/t",
    ]
    topic = plan.results[0].topic
    assert topic is not None
    assert len(topic.partitions) == 3
    assert topic.partitions[0].leader == 1
    assert topic.configs == {"retention.ms": "5"}


@pytest.mark.parametrize(
    ("topic", "code", "message"),
    [
        (NewTopic("a b"), ErrorCode.invalid_topic_exception, "is illegal"),
        (NewTopic("old"), ErrorCode.topic_already_exists, "Topic 'old' already exists."),
        (NewTopic("a_b.c"), ErrorCode.invalid_topic_exception, "collides with topic 'a.b.c'"),
        (NewTopic("t", num_partitions=0), ErrorCode.invalid_partitions, "1 or more"),
        (NewTopic("t", num_partitions=-2), ErrorCode.invalid_partitions, "1 or more"),
        (NewTopic("t", num_partitions=2**31 - 1), ErrorCode.policy_violation, "10000 partitions at most"),
        (NewTopic("t", replication_factor=0), ErrorCode.invalid_replication_factor, "1 or more"),
        (NewTopic("t", replication_factor=2), ErrorCode.invalid_replication_factor, "only 1 broker(s)"),
        (NewTopic("t", 1, -1, {0: [1]}), ErrorCode.invalid_request, "manual assignment"),
        (NewTopic("t", assignments={1: [1]}), ErrorCode.invalid_replica_assignment, "must be 0 to 0"),
        (NewTopic("t", assignments={0: []}), ErrorCode.invalid_replica_assignment, "names no broker"),
        (NewTopic("t", assignments={0: [1, 1]}), ErrorCode.invalid_replica_assignment, "names a broker twice"),
        (NewTopic("t", assignments={0: [7]}), ErrorCode.invalid_replica_assignment, "broker 7"),
        (NewTopic("t", configs={"retention.ms": "x"}), ErrorCode.invalid_config, "must be of type LONG"),
        (NewTopic("t", configs={"retention.ms": None}), ErrorCode.invalid_config, "has no value"),
        (NewTopic("t", configs={"cleanup.policy": "shrink"}), ErrorCode.invalid_config, "list of delete, compact"),
        (NewTopic("t", configs={"retention": "1"}), ErrorCode.invalid_config, "did you mean 'retention.ms'"),
    ],
)
def test_a_topic_that_cannot_be_is_refused_and_the_others_are_made(
    topic: NewTopic, code: ErrorCode, message: str
) -> None:
    results = create(image_of("old", "a.b.c"), topic, NewTopic("good"))
    assert results[0][:2] == (topic.name, code)
    assert message in results[0][2]
    assert results[1] == ("good", ErrorCode.none, "")


def test_a_name_that_stands_twice_is_refused_once() -> None:
    assert [(name, code) for name, code, _ in create(image_of(), NewTopic("t"), NewTopic("u"), NewTopic("t"))] == [
        ("t", ErrorCode.invalid_request),
        ("u", ErrorCode.none),
    ]


def test_names_of_one_request_collide_with_each_other() -> None:
    assert [code for _, code, _ in create(image_of(), NewTopic("a.b"), NewTopic("a_b"))] == [
        ErrorCode.none,
        ErrorCode.invalid_topic_exception,
    ]


def test_replicas_of_one_topic_are_equally_many() -> None:
    results = create(image_of(brokers=3), NewTopic("t", assignments={0: [1, 2], 1: [3]}))
    assert results[0][1] is ErrorCode.invalid_replica_assignment


def test_one_request_adds_a_bounded_number_of_partitions() -> None:
    topics = [NewTopic(f"t{index}", MAX_PARTITIONS_PER_REQUEST // 2) for index in range(3)]
    assert [code for _, code, _ in create(image_of(), *topics)] == [
        ErrorCode.none,
        ErrorCode.none,
        ErrorCode.policy_violation,
    ]


@pytest.mark.parametrize("name", ["t", "__consumer_offsets"])
def test_a_topic_may_be_created_compacted(name: str) -> None:
    assert create(image_of(), NewTopic(name, configs={"cleanup.policy": "compact"}))[0][1] == 0


def test_topics_are_deleted_by_name_and_by_id() -> None:
    image = image_of("t", "u").apply([(paths.topic_config_path("t"), paths.encode_config({"a": "b"}))])
    plan = plan_delete_topics(image, CONFIG, ["t", uuid.UUID(int=11), "missing", uuid.UUID(int=99)], NOW_MS)
    assert [(result.name, result.topic_id, result.error.code if result.error else 0) for result in plan.results] == [
        ("t", uuid.UUID(int=10), 0),
        ("u", uuid.UUID(int=11), 0),
        ("missing", None, ErrorCode.unknown_topic_or_partition),
        (None, uuid.UUID(int=99), ErrorCode.unknown_topic_id),
    ]
    assert plan.operations == [
        Delete("/brokers/topics/t/0"),
        Delete("/brokers/topics/t"),
        Create("/deleted/00000000-0000-0000-0000-00000000000a", b"1700000000000"),
        Delete("/config/topics/t"),
        Delete("/brokers/topics/u/0"),
        Delete("/brokers/topics/u"),
        Create("/deleted/00000000-0000-0000-0000-00000000000b", b"1700000000000"),
    ]


def test_a_deletion_removes_tombstones_that_nobody_needs_any_more() -> None:
    ages_ms = {1: 0, 2: TOMBSTONE_MS - 1, 3: TOMBSTONE_MS, 4: 2 * TOMBSTONE_MS}
    image = image_of("t").apply(
        [
            (paths.deleted_topic_path(uuid.UUID(int=each)), paths.encode_deleted_topic(NOW_MS - age_ms))
            for each, age_ms in ages_ms.items()
        ]
    )
    assert image.is_deleted(uuid.UUID(int=3))
    plan = plan_delete_topics(image, CONFIG, ["t"], NOW_MS)
    assert plan.operations[-2:] == [Delete(paths.deleted_topic_path(uuid.UUID(int=each))) for each in (3, 4)]
    assert plan_delete_topics(image, CONFIG, ["missing"], NOW_MS).operations == []


def test_a_topic_deleted_twice_in_one_request_stays() -> None:
    plan = plan_delete_topics(image_of("t"), CONFIG, ["t", uuid.UUID(int=10)], NOW_MS)
    assert [result.error.code for result in plan.results if result.error] == [ErrorCode.invalid_request]
    assert plan.operations == []


def test_internal_topics_and_protected_ones_are_not_deleted() -> None:
    plan = plan_delete_topics(image_of("__consumer_offsets"), CONFIG, ["__consumer_offsets"], NOW_MS)
    assert plan.results[0].error is not None
    assert plan.results[0].error.code is ErrorCode.invalid_request
    protected = BrokerConfig.from_properties({"delete.topic.enable": False})
    refused = plan_delete_topics(image_of("t"), protected, ["t"], NOW_MS).results[0].error
    assert refused is not None
    assert refused.code is ErrorCode.topic_deletion_disabled


def test_a_topic_grows_and_keeps_its_partitions() -> None:
    image = image_of("t")
    plan = plan_create_partitions(image, LiveBrokers(image), [NewPartitions("t", 4, [[1], [1]])], lambda _: 0)
    topic = plan.results[0].topic
    assert topic is not None
    assert len(topic.partitions) == 4
    states, node = plan.operations
    assert isinstance(states, SetData)
    assert isinstance(node, SetData)
    assert decode_chunk(states.path, states.data) == topic.partitions
    assert decode_topic(node.path, node.data) == (uuid.UUID(int=10), 4)


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (NewPartitions("missing", 4), ErrorCode.unknown_topic_or_partition),
        (NewPartitions("t", 2), ErrorCode.invalid_partitions),
        (NewPartitions("t", 1), ErrorCode.invalid_partitions),
        (NewPartitions("t", -1), ErrorCode.invalid_partitions),
        (NewPartitions("t", 2**31 - 1), ErrorCode.policy_violation),
        (NewPartitions("t", 4, [[1]]), ErrorCode.invalid_replica_assignment),
        (NewPartitions("t", 3, [[9]]), ErrorCode.invalid_replica_assignment),
        (NewPartitions("t", 3, [[]]), ErrorCode.invalid_replica_assignment),
        (NewPartitions("__consumer_offsets", 51), ErrorCode.invalid_request),
    ],
)
def test_a_growth_that_cannot_be_is_refused(request_: NewPartitions, code: ErrorCode) -> None:
    image = image_of("t", "__consumer_offsets")
    plan = plan_create_partitions(image, LiveBrokers(image), [request_], lambda _: 0)
    assert plan.operations == []
    assert plan.results[0].error is not None
    assert plan.results[0].error.code is code


def test_leaders_and_followers_are_spread_evenly() -> None:
    assigned = assign_replicas(dict.fromkeys([1, 2, 3, 4]), 3, range(40), 2)
    assert all(len(set(replicas)) == 3 for replicas in assigned)
    for place in range(3):
        counts = [sum(replicas[place] == broker for replicas in assigned) for broker in (1, 2, 3, 4)]
        assert max(counts) - min(counts) <= 4
    assert assign_replicas({5: None}, 1, range(2), 0) == [(5,), (5,)]


def created(image: MetadataImage, candidates: LiveBrokers, *topics: NewTopic) -> tuple[PartitionImage, ...]:
    """The partitions of new topics, none of which is refused."""
    plan = plan_create_topics(image, candidates, CONFIG, topics, draw_ids(), lambda _: 0)
    assert [result.error for result in plan.results] == [None] * len(topics)
    return tuple(each for result in plan.results if result.topic is not None for each in result.topic.partitions)


@pytest.mark.parametrize("name", ["t", "__consumer_offsets"])
def test_brokers_that_are_away_get_replicas_and_join_the_isr_later(name: str) -> None:
    image = image_of(brokers=3, away={1})
    assert created(image, LiveBrokers(image), NewTopic(name, 4, 3)) == (
        PartitionImage(2, 0, 0, (2, 3, 1), (2, 3)),
        PartitionImage(3, 0, 0, (3, 2, 1), (3, 2)),
        PartitionImage(2, 0, 0, (2, 3, 1), (2, 3)),
        PartitionImage(3, 0, 0, (3, 2, 1), (3, 2)),
    )


def test_a_topic_is_made_although_fewer_replicas_than_its_minimum_are_alive() -> None:
    image = image_of(brokers=3, away={1, 3})
    topic = NewTopic("t", 1, 3, configs={"min.insync.replicas": "2"})
    (partition,) = created(image, LiveBrokers(image), topic)
    assert partition == PartitionImage(2, 0, 0, (2, 1, 3), (2,))
    assert partition.elr == ()


def test_a_broker_that_shuts_down_neither_leads_new_partitions_nor_is_in_their_isr() -> None:
    image = image_of(brokers=3)
    shutting_down = LiveBrokers(image, {1: 0})
    assert {each.leader for each in created(image, shutting_down, NewTopic("t", 6, 2))} == {2, 3}
    assert created(image, shutting_down, NewTopic("t", assignments={0: [1, 2, 3]})) == (
        PartitionImage(2, 0, 0, (1, 2, 3), (2, 3)),
    )
    # It has registered again since: that was its earlier life.
    assert {each.leader for each in created(image, LiveBrokers(image, {1: 7}), NewTopic("t", 6, 2))} == {1, 2, 3}


def test_a_topic_grows_on_brokers_that_are_away() -> None:
    image = image_of(brokers=3, away={3}).apply(topic_changes("t", uuid.UUID(int=10), [(3, 1, 2)]))
    plan = plan_create_partitions(image, LiveBrokers(image), [NewPartitions("t", 3)], lambda _: 0)
    topic = plan.results[0].topic
    assert topic is not None
    assert topic.partitions[1:] == (
        PartitionImage(2, 0, 0, (2, 1, 3), (2, 1)),
        PartitionImage(1, 0, 0, (1, 2, 3), (1, 2)),
    )


@pytest.mark.parametrize(
    ("topic", "away", "code", "message"),
    [
        (
            NewTopic("t", 1, 4),
            {2},
            ErrorCode.invalid_replication_factor,
            "The replication factor 4 cannot be reached: only 3 broker(s) are registered, of which 2 are alive.",
        ),
        (
            NewTopic("t", 1, 1),
            {1, 2, 3},
            ErrorCode.invalid_replication_factor,
            "No broker can lead a new partition: all 3 that are registered are away or shut down.",
        ),
        (
            NewTopic("t", assignments={0: [1, 2], 1: [2, 3]}),
            {2, 3},
            ErrorCode.invalid_replica_assignment,
            "The assignment of partition 1 names only brokers that are away or shut down.",
        ),
        (
            NewTopic("t", assignments={0: [1, 4]}),
            {2},
            ErrorCode.invalid_replica_assignment,
            "The assignment of partition 0 names broker 4, which is not registered.",
        ),
    ],
)
def test_a_topic_without_a_leader_or_with_too_many_replicas_is_refused(
    topic: NewTopic, away: set[int], code: ErrorCode, message: str
) -> None:
    assert create(image_of(brokers=3, away=away), topic) == [("t", code, message)]
