"""Topics and their configs, by librdkafka's and kafka-python's admin clients."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
)
from kafka.admin import ConfigResource as KafkaPythonResource
from kafka.admin import KafkaAdminClient
from kafka.errors import TopicAlreadyExistsError, UnknownTopicOrPartitionError

if TYPE_CHECKING:
    from tests.conftest import TopicFactory

pytestmark = pytest.mark.slow


@pytest.fixture
def kafka_python_admin(bootstrap_servers: str) -> Iterator[KafkaAdminClient]:
    client = KafkaAdminClient(bootstrap_servers=bootstrap_servers)
    yield client
    client.close()


def configs_of(admin: AdminClient, topic: str) -> dict[str, ConfigEntry]:
    resource = ConfigResource(ResourceType.TOPIC, topic)
    entries: dict[str, ConfigEntry] = admin.describe_configs([resource], request_timeout=30)[resource].result()
    return entries


def alter(admin: AdminClient, topic: str, name: str, value: str | None, operation: AlterConfigOpType) -> None:
    entry = ConfigEntry(name, value, incremental_operation=operation)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin.incremental_alter_configs([resource], request_timeout=30)[resource].result()


def error_of(caught: pytest.ExceptionInfo[KafkaException]) -> str:
    name: str = caught.value.args[0].name()
    return name


def test_a_topic_is_created_listed_and_deleted(admin: AdminClient) -> None:
    name = f"test-{uuid.uuid4().hex[:12]}"
    admin.create_topics([NewTopic(name, 3, 1)])[name].result(30)
    topic = admin.list_topics(timeout=30).topics[name]
    assert sorted(topic.partitions) == [0, 1, 2]
    assert all(p.leader >= 0 and p.error is None for p in topic.partitions.values())
    admin.delete_topics([name])[name].result(30)
    assert name not in admin.list_topics(timeout=30).topics


def test_a_topic_that_exists_is_not_created_again(admin: AdminClient, new_topic: TopicFactory) -> None:
    name = new_topic()
    with pytest.raises(KafkaException) as caught:
        admin.create_topics([NewTopic(name, 1, 1)])[name].result(30)
    assert error_of(caught) == "TOPIC_ALREADY_EXISTS"


@pytest.mark.parametrize("name", ["..", "a b", "a/b", "x" * 250])
def test_a_name_that_cannot_be_a_folder_is_refused(admin: AdminClient, name: str) -> None:
    with pytest.raises(KafkaException) as caught:
        admin.create_topics([NewTopic(name, 1, 1)])[name].result(30)
    assert error_of(caught) == "TOPIC_EXCEPTION"


@pytest.mark.parametrize(
    ("topic", "error"),
    [
        (NewTopic("test-refused", 0, 1), "INVALID_PARTITIONS"),
        (NewTopic("test-refused", 1, 99), "INVALID_REPLICATION_FACTOR"),
        (NewTopic("test-refused", 1, 1, config={"no.such.config": "1"}), "INVALID_CONFIG"),
        (NewTopic("test-refused", 1, 1, config={"retention.ms": "soon"}), "INVALID_CONFIG"),
    ],
    ids=["no partitions", "more replicas than brokers", "unknown config", "malformed config"],
)
def test_what_cannot_be_is_refused_by_its_error(admin: AdminClient, topic: NewTopic, error: str) -> None:
    with pytest.raises(KafkaException) as caught:
        admin.create_topics([topic], request_timeout=30)["test-refused"].result(30)
    assert error_of(caught) == error
    assert "test-refused" not in admin.list_topics(timeout=30).topics


def test_a_dry_run_creates_nothing(admin: AdminClient) -> None:
    name = f"test-{uuid.uuid4().hex[:12]}"
    admin.create_topics([NewTopic(name, 1, 1)], validate_only=True, request_timeout=30)[name].result(30)
    assert name not in admin.list_topics(timeout=30).topics


def test_deleting_an_unknown_topic_says_so(admin: AdminClient) -> None:
    with pytest.raises(KafkaException) as caught:
        admin.delete_topics(["test-never-made"])["test-never-made"].result(30)
    assert error_of(caught) == "UNKNOWN_TOPIC_OR_PART"


def test_partitions_are_added_and_never_taken_away(admin: AdminClient, new_topic: TopicFactory) -> None:
    name = new_topic(2)
    admin.create_partitions([NewPartitions(name, 5)], request_timeout=30)[name].result(30)
    assert len(admin.list_topics(name, timeout=30).topics[name].partitions) == 5
    with pytest.raises(KafkaException) as caught:
        admin.create_partitions([NewPartitions(name, 3)], request_timeout=30)[name].result(30)
    assert error_of(caught) == "INVALID_PARTITIONS"


def test_configs_are_described_with_their_defaults_changed_and_reset(
    admin: AdminClient, new_topic: TopicFactory
) -> None:
    name = new_topic(config={"retention.ms": "1000000"})
    before = configs_of(admin, name)
    assert (before["retention.ms"].value, before["retention.ms"].is_default) == ("1000000", False)
    assert (before["segment.bytes"].value, before["segment.bytes"].is_default) == ("1073741824", True)
    alter(admin, name, "segment.bytes", "2000000", AlterConfigOpType.SET)
    alter(admin, name, "retention.ms", None, AlterConfigOpType.DELETE)
    after = configs_of(admin, name)
    assert (after["segment.bytes"].value, after["segment.bytes"].is_default) == ("2000000", False)
    assert after["retention.ms"].value == "604800000"


@pytest.mark.parametrize(("name", "value"), [("no.such.config", "1"), ("retention.ms", "soon")])
def test_a_config_that_is_unknown_or_malformed_is_refused(
    admin: AdminClient, new_topic: TopicFactory, name: str, value: str
) -> None:
    topic = new_topic()
    with pytest.raises(KafkaException) as caught:
        alter(admin, topic, name, value, AlterConfigOpType.SET)
    assert error_of(caught) == "INVALID_CONFIG"


def test_the_cluster_has_an_id_a_controller_and_a_broker(admin: AdminClient) -> None:
    cluster = admin.describe_cluster(request_timeout=30).result()
    assert cluster.cluster_id
    assert cluster.controller is not None
    assert len(cluster.nodes) == 1


def test_kafka_python_administers_topics(kafka_python_admin: KafkaAdminClient) -> None:
    name = f"test-{uuid.uuid4().hex[:12]}"
    kafka_python_admin.create_topics(
        {name: {"num_partitions": 2, "replication_factor": 1, "configs": {"retention.ms": "5000"}}},
        wait_for_metadata=True,
    )
    assert name in {t["name"] for t in kafka_python_admin.describe_topics([name])}
    with pytest.raises(TopicAlreadyExistsError):
        kafka_python_admin.create_topics({name: {"num_partitions": 2, "replication_factor": 1}})
    kafka_python_admin.create_partitions({name: 4})
    [topic] = kafka_python_admin.describe_topics([name])
    assert len(topic["partitions"]) == 4
    kafka_python_admin.alter_configs([KafkaPythonResource("topic", name, {"retention.ms": ("SET", "7000")})])
    described = kafka_python_admin.describe_configs([KafkaPythonResource("topic", name)])
    assert described["topic"][name]["retention.ms"]["value"] == "7000"
    kafka_python_admin.delete_topics([name])
    with pytest.raises(UnknownTopicOrPartitionError):
        kafka_python_admin.delete_topics([name])


def test_kafka_python_lists_groups(kafka_python_admin: KafkaAdminClient) -> None:
    assert isinstance(kafka_python_admin.list_groups(), list)
