"""The APIs of topics, configs and producer ids, in every version, over a real local metadata store.

Each request goes through kio's writer and the broker's own reader, each answer through the broker's encoder and kio's
reader: what a client would send and see.
"""

import uuid
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from headwater.logtier.config import TOPIC_CONFIGS
from headwater.logtier.controller.commands import NewPartitions
from headwater.logtier.handlers.cluster import describe_cluster
from headwater.logtier.handlers.configs import (
    alter_configs,
    describe_configs,
    incremental_alter_configs,
)
from headwater.logtier.handlers.topics import (
    create_partitions,
    create_topics,
    delete_topics,
    metadata,
)
from headwater.logtier.handlers.transactions import init_producer_id
from headwater.logtier.metadata import paths
from headwater.logtier.protocol import messages
from headwater.logtier.protocol.errors import ErrorCode
from tests.handler_client import SECOND_MS, Client, create_request, run


def versions(handler: ModuleType) -> Any:
    first, last = handler.VERSIONS
    return pytest.mark.parametrize("version", range(first, last + 1))


def test_the_version_ranges_are_kafka_4_1s() -> None:
    assert {module.API_KEY: module.VERSIONS for module in (
        metadata, create_topics, delete_topics, init_producer_id, describe_configs, alter_configs, create_partitions,
        incremental_alter_configs, describe_cluster,
    )} == {
        3: (0, 13), 19: (2, 7), 20: (1, 6), 22: (0, 5), 32: (1, 4), 33: (0, 2), 37: (0, 3), 44: (0, 1), 60: (0, 2),
    }  # fmt: skip


@versions(metadata)
def test_metadata_tells_brokers_and_topics(tmp_path: Path, version: int) -> None:
    async def scenario(client: Client) -> None:
        topic_id = (await client.create("flights", 3)).topic_id
        response = await client.send(metadata, version, topics=[{"name": "flights", "topic_id": None}])
        broker = response.brokers[0]
        assert (broker.node_id, broker.host, broker.port) == (1, "broker.example", 19092)
        (topic,) = response.topics
        assert (topic.name, topic.error_code) == ("flights", ErrorCode.none)
        assert [partition.partition_index for partition in topic.partitions] == [0, 1, 2]
        assert all(p.leader_id == 1 and p.replica_nodes == p.isr_nodes == (1,) for p in topic.partitions)
        if version >= 1:
            assert (broker.rack, response.controller_id, topic.is_internal) == ("rack-a", 1, False)
        if version >= 2:
            assert response.cluster_id == client.services.metadata.image.cluster_id
        if version >= 7:
            assert topic.partitions[0].leader_epoch == 0
        if version >= 10:
            assert topic.topic_id == topic_id

    run(tmp_path, scenario)


@versions(metadata)
def test_metadata_of_all_topics(tmp_path: Path, version: int) -> None:
    async def scenario(client: Client) -> None:
        for name in ("b", "a", "__consumer_offsets"):
            await client.create(name)
        response = await client.send(metadata, version, topics=None if version else ())
        assert [topic.name for topic in response.topics] == ["__consumer_offsets", "a", "b"]
        if version >= 1:
            assert [topic.is_internal for topic in response.topics] == [True, False, False]
            assert (await client.send(metadata, version, topics=())).topics == ()

    run(tmp_path, scenario)


@versions(metadata)
def test_metadata_creates_a_missing_topic_where_that_is_wanted(tmp_path: Path, version: int) -> None:
    async def scenario(client: Client) -> None:
        asked = [{"name": "new", "topic_id": None}, {"name": "a b", "topic_id": None}]
        if version >= 4:
            response = await client.send(metadata, version, topics=asked, allow_auto_topic_creation=False)
            assert [topic.error_code for topic in response.topics] == [
                ErrorCode.unknown_topic_or_partition,
                ErrorCode.invalid_topic_exception,
            ]
            assert client.services.metadata.image.topics == {}
        for time in range(2):
            response = await client.send(metadata, version, topics=asked, allow_auto_topic_creation=True)
            is_told = time > 0 or version > 1
            assert [(topic.name, topic.error_code, len(topic.partitions)) for topic in response.topics] == [
                ("new", ErrorCode.none, 4) if is_told else ("new", ErrorCode.unknown_topic_or_partition, 0),
                ("a b", ErrorCode.invalid_topic_exception, 0),
            ]

    run(tmp_path, scenario, num_partitions=4)


def test_metadata_creates_nothing_where_the_broker_forbids_it(tmp_path: Path) -> None:
    async def scenario(client: Client) -> None:
        response = await client.send(metadata, 12, topics=[{"name": "new", "topic_id": None}])
        assert response.topics[0].error_code is ErrorCode.unknown_topic_or_partition
        assert client.services.metadata.image.topics == {}

    run(tmp_path, scenario, auto_create_topics_enable=False)


def test_metadata_does_not_make_internal_topics(tmp_path: Path) -> None:
    async def scenario(client: Client) -> None:
        response = await client.send(metadata, 12, topics=[{"name": "__consumer_offsets", "topic_id": None}])
        assert response.topics[0].error_code is ErrorCode.unknown_topic_or_partition

    run(tmp_path, scenario)


@pytest.mark.parametrize("version", [10, 11])
def test_metadata_is_not_told_by_topic_id_before_its_time(tmp_path: Path, version: int) -> None:
    async def scenario(client: Client) -> None:
        topic_id = (await client.create("flights", 2)).topic_id
        asked = [{"topic_id": topic_id, "name": "flights"}, {"topic_id": None, "name": "flights"}]
        told = await client.send(metadata, version, topics=asked)
        assert [(topic.error_code, topic.name, topic.topic_id) for topic in told.topics] == [
            (ErrorCode.invalid_request, "flights", topic_id),
            (ErrorCode.invalid_request, "flights", None),
        ]
        assert told.brokers == ()

    run(tmp_path, scenario)


@pytest.mark.parametrize("version", [10, 11, 12, 13])
def test_metadata_of_a_topic_without_name_and_id_is_refused(tmp_path: Path, version: int) -> None:
    async def scenario(client: Client) -> None:
        told = await client.send(metadata, version, topics=[{"topic_id": None, "name": None}])
        [topic] = told.topics
        assert (topic.error_code, topic.name, topic.topic_id) == (ErrorCode.invalid_request, "", None)
        assert version < 13 or told.error_code is ErrorCode.invalid_request

    run(tmp_path, scenario)


@pytest.mark.parametrize("version", [12, 13])
def test_metadata_by_topic_id(tmp_path: Path, version: int) -> None:
    async def scenario(client: Client) -> None:
        topic_id = (await client.create("flights", 2)).topic_id
        unknown = uuid.uuid4()
        asked = [{"topic_id": topic_id, "name": None}, {"topic_id": unknown, "name": None}]
        found, missing = (await client.send(metadata, version, topics=asked)).topics
        assert (found.name, found.topic_id, len(found.partitions)) == ("flights", topic_id, 2)
        assert (missing.error_code, missing.topic_id) == (ErrorCode.unknown_topic_id, unknown)
        assert missing.name is None
        assert len(client.services.metadata.image.topics) == 1

    run(tmp_path, scenario)


def test_authorized_operations_are_told_where_they_are_asked_for(tmp_path: Path) -> None:
    async def scenario(client: Client) -> None:
        await client.create("t")
        # Twice each: the answers are kept, and must not be mistaken for each other.
        for asked in (True, False, True, False):
            fields = {"include_topic_authorized_operations": asked, "include_cluster_authorized_operations": asked}
            response = await client.send(metadata, 10, topics=[{"name": "t", "topic_id": None}], **fields)
            # As Apache Kafka 4.1.1 answers without an authorizer.
            assert response.topics[0].topic_authorized_operations == (3576 if asked else -(2**31))
            assert response.cluster_authorized_operations == (8096 if asked else -(2**31))
            cluster = await client.send(
                describe_cluster, 2, include_cluster_authorized_operations=asked, include_fenced_brokers=False
            )
            assert cluster.cluster_authorized_operations == response.cluster_authorized_operations

    run(tmp_path, scenario)


def test_kept_metadata_is_dropped_when_the_image_changes(tmp_path: Path) -> None:
    async def scenario(client: Client) -> None:
        await client.create("t", 1)
        asked = [{"name": "t", "topic_id": None}]
        for expected in (1, 1, 5, 5):
            if expected == 5:
                await client.services.controller.create_partitions([NewPartitions("t", 5)])
            assert len((await client.send(metadata, 12, topics=asked)).topics[0].partitions) == expected
            assert len((await client.send(metadata, 12, topics=None)).topics[0].partitions) == expected
        await client.services.controller.delete_topics(["t"])
        assert (await client.send(metadata, 12, topics=None)).topics == ()

    run(tmp_path, scenario)


@versions(create_topics)
def test_topics_are_created_each_by_itself(tmp_path: Path, version: int) -> None:
    async def scenario(client: Client) -> None:
        request = create_request("t", 3, {"retention.ms": "5"})
        request["topics"] += create_request("bad name", 1, {})["topics"] + create_request("u", 1, {"x": "1"})["topics"]
        good, bad_name, bad_config = (await client.send(create_topics, version, **request)).topics
        assert (good.name, good.error_code) == ("t", ErrorCode.none)
        assert bad_name.error_code is ErrorCode.invalid_topic_exception
        assert bad_config.error_code is ErrorCode.invalid_config
        assert "topic config 'x' is not known" in bad_config.error_message
        if version >= 5:
            assert (good.num_partitions, good.replication_factor) == (3, 1)
            configs = {config.name: (config.value, config.config_source) for config in good.configs}
            assert configs["retention.ms"] == ("5", 1)
            assert configs["segment.bytes"] == ("1000000", 4)
            assert configs["segment.ms"] == ("604800000", 5)
        if version >= 7:
            assert good.topic_id == client.services.metadata.image.topics["t"].topic_id
            assert good.topic_id.int
        again = await client.send(create_topics, version, **create_request("t", 3, {}))
        assert again.topics[0].error_code is ErrorCode.topic_already_exists
        validated = create_request("v", 1, {}) | {"validate_only": True}
        assert (await client.send(create_topics, version, **validated)).topics[0].error_code is ErrorCode.none
        assert sorted(client.services.metadata.image.topics) == ["t"]

    run(tmp_path, scenario, log_segment_bytes=1_000_000)


def test_a_config_or_partition_that_stands_twice_is_refused(tmp_path: Path) -> None:
    async def scenario(client: Client) -> None:
        request = create_request("t", 1, {})
        request["topics"][0]["configs"] = [{"name": "retention.ms", "value": value} for value in "12"]
        assert (await client.send(create_topics, 7, **request)).topics[0].error_code is ErrorCode.invalid_request
        request = create_request("t", -1, {})
        request["topics"][0] |= {
            "replication_factor": -1,
            "assignments": [{"partition_index": 0, "broker_ids": (1,)}] * 2,
        }
        assert (await client.send(create_topics, 7, **request)).topics[0].error_code is ErrorCode.invalid_request

    run(tmp_path, scenario)


@versions(delete_topics)
def test_topics_are_deleted(tmp_path: Path, version: int) -> None:
    async def scenario(client: Client) -> None:
        await client.create("t", 1, retention_ms="5")
        u = (await client.create("u")).topic_id
        fields: dict[str, Any] = {"timeout": messages.to_timedelta(SECOND_MS)}
        if version < 6:
            fields["topic_names"] = ["t", "missing"]
        else:
            fields["topics"] = [
                {"name": "t", "topic_id": None},
                {"name": "missing", "topic_id": None},
                {"name": None, "topic_id": u},
                {"name": None, "topic_id": uuid.UUID(int=5)},
                {"name": None, "topic_id": None},
                {"name": "t", "topic_id": u},
            ]
        response = await client.send(delete_topics, version, **fields)
        codes = {(result.name, getattr(result, "topic_id", None)): result.error_code for result in response.responses}
        if version < 6:
            assert codes == {
                ("t", None): ErrorCode.none,
                ("missing", None): ErrorCode.unknown_topic_or_partition,
            }
            assert sorted(client.services.metadata.image.topics) == ["u"]
        else:
            assert sorted(codes.values()) == sorted(
                [
                    ErrorCode.none,
                    ErrorCode.none,
                    ErrorCode.unknown_topic_or_partition,
                    ErrorCode.unknown_topic_id,
                    ErrorCode.invalid_request,
                    ErrorCode.invalid_request,
                ]
            )
            assert codes["u", u] is ErrorCode.none
            assert client.services.metadata.image.topics == {}

    run(tmp_path, scenario)


@versions(create_partitions)
def test_every_topic_of_create_partitions_gets_its_result(tmp_path: Path, version: int) -> None:
    async def scenario(client: Client) -> None:
        await client.create("t", 2)
        topics = [
            {"name": "t", "count": 5, "assignments": None},
            {"name": "missing", "count": 5, "assignments": None},
        ]
        fields = {"timeout": messages.to_timedelta(SECOND_MS), "validate_only": False}
        response = await client.send(create_partitions, version, topics=topics, **fields)
        assert [(result.name, result.error_code) for result in response.results] == [
            ("t", ErrorCode.none),
            ("missing", ErrorCode.unknown_topic_or_partition),
        ]
        assert len(client.services.metadata.image.topics["t"].partitions) == 5
        fewer = [{"name": "t", "count": 6, "assignments": [{"broker_ids": (9,)}]}]
        response = await client.send(create_partitions, version, topics=fewer, **fields)
        assert response.results[0].error_code is ErrorCode.invalid_replica_assignment
        assert "broker 9" in response.results[0].error_message

    run(tmp_path, scenario)


@versions(describe_configs)
def test_configs_of_topics_and_brokers_are_described(tmp_path: Path, version: int) -> None:
    async def scenario(client: Client) -> None:
        await client.create("t", 1, retention_ms="5")
        resources = [
            {"resource_type": 2, "resource_name": "t", "configuration_keys": None},
            {"resource_type": 2, "resource_name": "missing", "configuration_keys": None},
            {"resource_type": 4, "resource_name": "1", "configuration_keys": ("num.partitions", "log.retention.ms")},
            {"resource_type": 4, "resource_name": "2", "configuration_keys": None},
            {"resource_type": 4, "resource_name": "", "configuration_keys": None},
            {"resource_type": 32, "resource_name": "g", "configuration_keys": None},
        ]
        response = await client.send(
            describe_configs, version, resources=resources, include_synonyms=True, include_documentation=True
        )
        topic, missing, broker, other, all_brokers, group = response.results
        configs = {config.name: config for config in topic.configs}
        assert configs.keys() == TOPIC_CONFIGS.keys()
        retention = configs["retention.ms"]
        assert (retention.value, retention.config_source, retention.read_only) == ("5", 1, False)
        assert [(synonym.name, synonym.value, synonym.source) for synonym in retention.synonyms] == [
            ("retention.ms", "5", 1),
            ("log.retention.hours", "168", 5),
        ]
        segment = configs["segment.bytes"]
        assert (segment.value, segment.config_source) == ("1000000", 4)
        assert [(synonym.name, synonym.value, synonym.source) for synonym in segment.synonyms] == [
            ("log.segment.bytes", "1000000", 4),
            ("log.segment.bytes", "1073741824", 5),
        ]
        if version >= 3:
            assert retention.config_type == 5
            assert "Retention time" in retention.documentation
        assert missing.error_code is ErrorCode.unknown_topic_or_partition
        assert {config.name: (config.value, config.read_only) for config in broker.configs} == {
            "num.partitions": ("1", True),
            "log.retention.ms": (None, False),
        }
        assert other.error_code is ErrorCode.invalid_request
        assert (all_brokers.error_code, all_brokers.configs) == (ErrorCode.none, ())
        assert {config.name: (config.value, config.config_source) for config in group.configs} == {
            "consumer.heartbeat.interval.ms": ("5000", 5),
            "consumer.session.timeout.ms": ("45000", 5),
        }
        plain = await client.send(
            describe_configs, version, resources=resources[:1], include_synonyms=False, include_documentation=False
        )
        assert all(config.synonyms == () for config in plain.results[0].configs)

    run(tmp_path, scenario, log_segment_bytes=1_000_000)


@versions(incremental_alter_configs)
def test_configs_are_altered_one_by_one(tmp_path: Path, version: int) -> None:
    async def scenario(client: Client) -> None:
        await client.create("t", 1, retention_ms="5")

        async def alter(*configs: tuple[str, int, str | None], validate_only: bool = False) -> ErrorCode:
            resource = {
                "resource_type": 2,
                "resource_name": "t",
                "configs": [
                    {"name": name, "config_operation": operation, "value": value} for name, operation, value in configs
                ],
            }
            response = await client.send(
                incremental_alter_configs, version, resources=[resource], validate_only=validate_only
            )
            (result,) = response.responses
            assert (result.resource_type, result.resource_name) == (2, "t")
            code: ErrorCode = result.error_code
            return code

        def configs() -> dict[str, str]:
            return dict(client.services.metadata.image.topics["t"].configs)

        assert await alter(("segment.bytes", 0, "100"), ("retention.ms", 1, None)) is ErrorCode.none
        assert configs() == {"segment.bytes": "100"}
        assert await alter(("segment.bytes", 0, "200"), validate_only=True) is ErrorCode.none
        assert await alter(("segment.bytes", 0, "x"), ("retention.ms", 0, "5")) is ErrorCode.invalid_config
        assert await alter(("cleanup.policy", 2, "shrink")) is ErrorCode.invalid_config
        assert configs() == {"segment.bytes": "100"}

    run(tmp_path, scenario)


@versions(alter_configs)
def test_configs_are_replaced_as_a_whole(tmp_path: Path, version: int) -> None:
    async def scenario(client: Client) -> None:
        await client.create("t", 1, retention_ms="5")
        resources = [
            {"resource_type": 2, "resource_name": "t", "configs": [{"name": "segment.bytes", "value": "100"}]},
            {"resource_type": 2, "resource_name": "missing", "configs": ()},
        ]
        response = await client.send(alter_configs, version, resources=resources, validate_only=False)
        assert [result.error_code for result in response.responses] == [
            ErrorCode.none,
            ErrorCode.unknown_topic_or_partition,
        ]
        assert client.services.metadata.image.topics["t"].configs == {"segment.bytes": "100"}

    run(tmp_path, scenario)


def test_a_dynamic_broker_config_is_described_with_its_source(tmp_path: Path) -> None:
    async def scenario(client: Client) -> None:
        await client.create("t")
        for name, value in (("", "7"), ("1", "8")):
            configs = [{"name": "log.retention.ms", "config_operation": 0, "value": value}]
            resource = {"resource_type": 4, "resource_name": name, "configs": configs}
            response = await client.send(incremental_alter_configs, 1, resources=[resource], validate_only=False)
            assert response.responses[0].error_code is ErrorCode.none
        keys = ("log.retention.ms", "retention.ms")
        resources = [
            {"resource_type": 4, "resource_name": "1", "configuration_keys": keys},
            {"resource_type": 2, "resource_name": "t", "configuration_keys": keys},
            {"resource_type": 4, "resource_name": "", "configuration_keys": None},
        ]
        described = await client.send(describe_configs, 4, resources=resources, include_synonyms=True)
        broker, topic, default = (configs for result in described.results for configs in result.configs)
        assert (broker.value, broker.config_source) == ("8", 2)
        assert [(synonym.value, synonym.source) for synonym in broker.synonyms] == [("8", 2), ("7", 3)]
        assert (topic.value, topic.config_source) == ("8", 2)
        # What the broker has instead is no matter of all brokers.
        assert (default.name, default.value, default.config_source) == ("log.retention.ms", "7", 3)
        assert [(synonym.value, synonym.source) for synonym in default.synonyms] == [("7", 3)]

    run(tmp_path, scenario)


def test_a_dynamic_broker_config_that_is_not_applied_is_described_so_that_it_can_be_deleted(tmp_path: Path) -> None:
    async def scenario(client: Client) -> None:
        metadata = client.services.metadata
        stored = {"message.max.bytes": "2000000000", "log.retention.ms": "soon"}
        metadata.publish(metadata.image.apply([(paths.broker_config_path("1"), paths.encode_config(stored))]))
        resources = [{"resource_type": 4, "resource_name": "1", "configuration_keys": tuple(stored)}]
        described = await client.send(describe_configs, 4, resources=resources, include_synonyms=True)
        assert {
            config.name: (config.value, config.config_source, config.synonyms[0].value)
            for config in described.results[0].configs
        } == {"message.max.bytes": ("1048588", 2, "2000000000"), "log.retention.ms": (None, 2, "soon")}

    run(tmp_path, scenario)


@versions(init_producer_id)
def test_idempotent_producers_get_ids(tmp_path: Path, version: int) -> None:
    async def scenario(client: Client) -> None:
        timeout = messages.to_timedelta(SECOND_MS)
        ids = []
        for _ in range(3):
            response = await client.send(init_producer_id, version, transactional_id=None, transaction_timeout=timeout)
            assert (response.error_code, response.producer_epoch) == (ErrorCode.none, 0)
            ids.append(response.producer_id)
        assert ids == [0, 1, 2]
        if version >= 3:
            response = await client.send(
                init_producer_id,
                version,
                transactional_id=None,
                transaction_timeout=timeout,
                producer_id=0,
                producer_epoch=-1,
            )
            assert response.error_code is ErrorCode.invalid_request

    run(tmp_path, scenario)


@versions(describe_cluster)
def test_the_cluster_is_described(tmp_path: Path, version: int) -> None:
    async def scenario(client: Client) -> None:
        fields = {"include_cluster_authorized_operations": False, "include_fenced_brokers": False}
        response = await client.send(describe_cluster, version, **fields)
        assert response.error_code is ErrorCode.none
        assert (response.cluster_id, response.controller_id) == (client.services.metadata.image.cluster_id, 1)
        assert [(broker.broker_id, broker.port) for broker in response.brokers] == [(1, 19092)]
        if version >= 1:
            response = await client.send(describe_cluster, version, endpoint_type=2, **fields)
            assert response.error_code is ErrorCode.mismatched_endpoint_type

    run(tmp_path, scenario)


def test_between_two_controllers_the_broker_is_named_that_forwards_to_the_next_one(tmp_path: Path) -> None:
    async def scenario(client: Client) -> None:
        metadata_cache = client.services.metadata
        # One that is dead is registered yet.
        dead = (paths.known_broker_path(0), paths.encode_known_broker("dead.example", 9092, None, 3))
        metadata_cache.publish(metadata_cache.image.apply([dead, (paths.CONTROLLER, None)]))
        assert metadata_cache.image.controller_id == -1
        assert (await client.send(metadata, 13, topics=())).controller_id == 1
        fields = {"include_cluster_authorized_operations": False, "include_fenced_brokers": False}
        # The truth, for those who look after the cluster.
        assert (await client.send(describe_cluster, 2, **fields)).controller_id == -1
        another = (paths.CONTROLLER, paths.encode_controller(0, 5))
        metadata_cache.publish(metadata_cache.image.apply([another]))
        assert (await client.send(metadata, 13, topics=())).controller_id == 0

    run(tmp_path, scenario)


def test_inferred_advertised_listeners_are_told_as_set_with_the_address_that_metadata_has(tmp_path: Path) -> None:
    async def scenario(client: Client) -> None:
        asked = [{"resource_type": 4, "resource_name": "1", "configuration_keys": ("advertised.listeners",)}]
        told = await client.send(
            describe_configs, 4, resources=asked, include_synonyms=True, include_documentation=False
        )
        [broker] = client.services.metadata.image.brokers.values()
        [config] = told.results[0].configs
        expected = f"PLAINTEXT://{broker.host}:{broker.port}"
        assert (config.name, config.value, config.config_source) == ("advertised.listeners", expected, 4)
        assert [(synonym.value, synonym.source) for synonym in config.synonyms] == [(expected, 4)]

    run(tmp_path, scenario)
