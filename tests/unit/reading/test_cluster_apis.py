"""Elections, reassignments, brokers, config resources and paged topics, as Apache Kafka 4.1.1 answers on one node."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

import pytest

from headwater.logtier.handlers.cluster import (
    api_versions,
    update_features,
)
from headwater.logtier.handlers.configs import list_config_resources
from headwater.logtier.handlers.topics import (
    alter_partition_reassignments,
    describe_topic_partitions,
    elect_leaders,
    list_partition_reassignments,
)
from headwater.logtier.metadata import paths
from headwater.logtier.metadata.topic_nodes import (
    NO_BROKER,
    PartitionImage,
    Reassignment,
    chunk_path,
    encode_chunk,
    encode_topic,
)
from headwater.logtier.protocol.errors import ErrorCode, KafkaError
from headwater.logtier.security.operations import AclOperation, ResourceType
from tests.unit.reading.conftest import Denying

if TYPE_CHECKING:
    from tests.unit.reading.conftest import World

NONE = ErrorCode.none
CLUSTER = (ResourceType.cluster, "kafka-cluster")


def register(world: World) -> None:
    world._change([(paths.known_broker_path(1), paths.encode_known_broker("broker.example", 9092, None, 0))])


def elect(world: World, version: int = 2, election_type: int = 0, topics: Any = (("flights", (0, 9)),)) -> Any:
    asked = None if topics is None else [{"topic": name, "partitions": indexes} for name, indexes in topics]
    return world.ask(elect_leaders, version, election_type=election_type, topic_partitions=asked, timeout=1000)


def codes(response: Any) -> list[ErrorCode]:
    return [each.error_code for topic in response.replica_election_results for each in topic.partition_result]


@pytest.mark.parametrize("version", [0, 1, 2])
@pytest.mark.parametrize("election_type", [0, 1])
def test_no_election_is_needed_where_there_is_a_leader(world: World, version: int, election_type: int) -> None:
    response = elect(world, version, election_type, (("flights", (0, 9)), ("weather", (0,))))
    assert codes(response) == [
        ErrorCode.election_not_needed,
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.unknown_topic_or_partition,
    ]


def test_of_all_partitions_only_those_without_a_leader_are_told(world: World) -> None:
    assert codes(elect(world, topics=None)) == []


def test_an_unknown_election_type_is_refused_from_the_version_on_that_has_types(world: World) -> None:
    assert elect(world, 2, 5).error_code is ErrorCode.invalid_request
    assert codes(elect(world, 2, 5)) == [ErrorCode.invalid_request] * 2
    assert codes(elect(world, 0, 5))[0] is ErrorCode.election_not_needed


def test_elections_need_the_right_to_alter_the_cluster(world: World) -> None:
    world.services.authorizer = Denying((AclOperation.alter, *CLUSTER))
    assert elect(world).error_code is ErrorCode.cluster_authorization_failed


def reassign(world: World, replicas: list[int] | None, *, topic: str = "flights", index: int = 0) -> ErrorCode:
    response = world.ask(
        alter_partition_reassignments,
        1,
        timeout=1000,
        allow_replication_factor_change=True,
        topics=[{"name": topic, "partitions": [{"partition_index": index, "replicas": replicas}]}],
    )
    assert response.error_code is NONE
    return ErrorCode(response.responses[0].partitions[0].error_code)


@pytest.mark.parametrize(
    ("replicas", "code"),
    [
        ([1], NONE),
        ([2], ErrorCode.invalid_replica_assignment),
        ([1, 2], ErrorCode.invalid_replica_assignment),
        ([1, 1], ErrorCode.invalid_replica_assignment),
        ([-1], ErrorCode.invalid_replica_assignment),
        ([], ErrorCode.invalid_replica_assignment),
        (None, ErrorCode.no_reassignment_in_progress),
    ],
)
def test_partitions_stay_on_the_only_broker(world: World, replicas: list[int] | None, code: ErrorCode) -> None:
    register(world)
    assert reassign(world, replicas) is code


def test_only_partitions_that_exist_are_reassigned(world: World) -> None:
    register(world)
    assert reassign(world, [1], index=9) is ErrorCode.unknown_topic_or_partition
    assert reassign(world, None, topic="weather") is ErrorCode.unknown_topic_or_partition


def list_reassignments(world: World, topics: Any) -> Any:
    return world.ask(list_partition_reassignments, 0, timeout=1000, topics=topics)


def test_the_factor_is_kept_only_from_the_version_on_that_can_ask_for_it(world: World) -> None:
    register(world)
    world._change([(paths.known_broker_path(2), paths.encode_known_broker("other.example", 9092, None, 0))])
    topics = [{"name": "flights", "partitions": [{"partition_index": 0, "replicas": [1, 2]}]}]
    for version, code in ((0, NONE), (1, ErrorCode.invalid_replication_factor)):
        response = world.ask(
            alter_partition_reassignments,
            version,
            timeout=1000,
            topics=topics,
            allow_replication_factor_change=False,
        )
        [topic] = response.responses
        assert [each.error_code for each in topic.partitions] == [code]


def test_what_is_reassigned_is_listed(world: World) -> None:
    moving = PartitionImage(2, 0, 1, (3, 2), (2,), reassignment=Reassignment((3,), (2,), (2,)))
    still = PartitionImage(2, 0, 0, (2, 3), isr=(2, 3))
    world._change(
        [
            (paths.topic_path("states"), encode_topic(uuid.UUID(int=8), 2)),
            (chunk_path("states", 0), encode_chunk([moving, still])),
        ]
    )
    for topics in (None, [{"name": "states", "partition_indexes": [1, 0, 0, 9]}, {"name": "none"}]):
        [topic] = list_reassignments(world, topics).topics
        [part] = topic.partitions
        assert (topic.name, part.partition_index) == ("states", 0)
        assert (part.replicas, part.adding_replicas, part.removing_replicas) == ((3, 2), (3,), (2,))
    assert list_reassignments(world, [{"name": "states", "partition_indexes": [1]}]).topics == ()


def test_no_reassignment_is_under_way(world: World) -> None:
    for topics in (None, [{"name": "flights", "partition_indexes": [0, 9]}]):
        response = list_reassignments(world, topics)
        assert (response.error_code, response.topics) == (NONE, ())
    world.services.authorizer = Denying((AclOperation.describe, *CLUSTER))
    with pytest.raises(KafkaError, match="cluster_authorization_failed"):
        list_reassignments(world, None)


@pytest.mark.parametrize(
    ("version", "name", "level", "upgrade_type", "reason"),
    [
        (0, "group.version", 1, 1, None),
        (1, "group.version", 1, 1, None),
        (2, "transaction.version", 2, 1, None),
        (2, "eligible.leader.replicas.version", 1, 1, None),
        (2, "eligible.leader.replicas.version", 0, 3, "Broker 1 only supports versions 1"),
        (2, "eligible.leader.replicas.version", 2, 1, "Broker 1 only supports versions 1"),
        (2, "metadata.version", 26, 2, "Broker 1 only supports versions 27"),
        (2, "group.version", 0, 1, "downgrade"),
        (2, "share.version", 0, 1, None),
        (2, "group.version", 9, 1, "only supports"),
        (2, "group.version", -1, 1, "less than 0"),
        (2, "weather.version", 1, 1, "does not support"),
    ],
)
def test_a_level_that_is_not_possible_is_refused_with_the_reason(
    world: World, version: int, name: str, level: int, upgrade_type: int, reason: str | None
) -> None:
    update = {
        "feature": name,
        "max_version_level": level,
        "upgrade_type": upgrade_type,
        "allow_downgrade": upgrade_type > 1,
    }
    response = world.ask(update_features, version, timeout=1000, feature_updates=[update], validate_only=False)
    assert response.error_code is (NONE if reason is None else ErrorCode.invalid_update_version)
    assert (reason or "") in (response.error_message or "")


@pytest.mark.parametrize("version", [3, 4])
def test_one_node_has_the_finalized_features_of_a_new_kafka_cluster(world: World, version: int) -> None:
    world.services.advertised_versions = {api_versions.API_KEY: api_versions.VERSIONS}
    response = world.ask(
        api_versions, version, client_software_name="tester", client_software_version="1", cluster_id=None, node_id=-1
    )
    supported = {each.name: (each.min_version, each.max_version) for each in response.supported_features}
    finalized = {each.name: each.max_version_level for each in response.finalized_features}
    assert finalized["eligible.leader.replicas.version"] == 1
    # Clients before version 4 reject a range from 0 (KAFKA-17011).
    assert supported.get("group.version") == ((0, 1) if version == 4 else None)
    assert supported["metadata.version"] == (27, 27)


def resources(world: World, version: int, kinds: list[int]) -> list[tuple[int, str]]:
    response = world.ask(list_config_resources, version, resource_types=kinds)
    assert response.error_code is NONE
    return [(getattr(each, "resource_type", 16), each.resource_name) for each in response.config_resources]


def test_config_resources_are_listed_by_kind(world: World) -> None:
    register(world)
    topics = [(2, "flights"), (2, "airports"), (2, "counts")]
    assert resources(world, 1, []) == [*topics, (4, "1"), (8, "1")]
    assert resources(world, 1, [4, 2]) == [(4, "1"), *topics]
    assert resources(world, 1, [16]) == resources(world, 0, []) == []
    assert world.ask(list_config_resources, 1, resource_types=[99]).error_code is ErrorCode.unsupported_version


def page(
    world: World, names: list[str], limit: int = 2000, cursor: tuple[str, int] | None = None
) -> tuple[list[tuple[str, ErrorCode, list[int]]], tuple[str, int] | None]:
    response = world.ask(
        describe_topic_partitions,
        0,
        topics=[{"name": name} for name in names],
        response_partition_limit=limit,
        cursor=cursor and {"topic_name": cursor[0], "partition_index": cursor[1]},
    )
    following = response.next_cursor
    return [
        (topic.name, topic.error_code, [partition.partition_index for partition in topic.partitions])
        for topic in response.topics
    ], following and (following.topic_name, following.partition_index)


def test_topics_come_page_by_page_in_order_of_name(world: World) -> None:
    first = page(world, [], 2)
    assert first == ([("airports", NONE, [0]), ("counts", NONE, [0])], ("flights", 0))
    assert page(world, [], 1, first[1]) == ([("flights", NONE, [0])], ("flights", 1))
    assert page(world, [], 1, ("flights", 1)) == ([("flights", NONE, [1])], None)
    assert page(world, [], 2000) == (
        [("airports", NONE, [0]), ("counts", NONE, [0]), ("flights", NONE, [0, 1])],
        None,
    )


def test_a_page_has_one_partition_at_least(world: World) -> None:
    for limit in (0, -5):
        assert page(world, ["flights"], limit) == ([("flights", NONE, [0])], ("flights", 1))


def test_a_cursor_may_point_between_topics_where_all_are_asked_for(world: World) -> None:
    assert page(world, [], 1, ("b", 1)) == ([("counts", NONE, [0])], ("flights", 0))
    assert page(world, ["flights"], 9, ("flights", 7)) == ([("flights", NONE, [])], None)


@pytest.mark.parametrize("cursor", [("weather", 0), ("flights", -1)])
def test_a_cursor_that_points_nowhere_is_refused(world: World, cursor: tuple[str, int]) -> None:
    assert page(world, ["flights"], 9, cursor) == ([("flights", ErrorCode.invalid_request, [])], None)


def test_topics_that_are_not_there_or_not_allowed_are_told_by_name_only(world: World) -> None:
    world.services.authorizer = Denying((AclOperation.describe, ResourceType.topic, "counts"))
    topics, _ = page(world, ["weather", "bad name", "counts", "airports", "airports"])
    assert topics == [
        ("airports", NONE, [0]),
        ("bad name", ErrorCode.invalid_topic_exception, []),
        ("counts", ErrorCode.topic_authorization_failed, []),
        ("weather", ErrorCode.unknown_topic_or_partition, []),
    ]
    assert [name for name, _, _ in page(world, [])[0]] == ["airports", "flights"]


def test_partitions_have_their_eligible_leader_replicas_and_last_known_leader(world: World) -> None:
    leaderless = PartitionImage(NO_BROKER, 5, 9, (2, 3, 4), isr=(), elr=(2, 3), last_known_leader=2)
    in_place = PartitionImage(3, 6, 10, (2, 3), isr=(2, 3), last_known_leader=2)
    whole = PartitionImage(2, 0, 0, (2, 3), isr=(2, 3))
    world._change(
        [
            (paths.topic_path("states"), encode_topic(uuid.UUID(int=8), 3)),
            (chunk_path("states", 0), encode_chunk([leaderless, in_place, whole])),
        ]
    )
    response = world.ask(
        describe_topic_partitions, 0, topics=[{"name": "states"}], response_partition_limit=9, cursor=None
    )
    [topic] = response.topics
    assert [(each.leader_id, each.eligible_leader_replicas, each.last_known_elr) for each in topic.partitions] == [
        (NO_BROKER, (2, 3), (2,)),
        (3, (), (2,)),
        (2, (), ()),
    ]
