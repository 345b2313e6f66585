"""Access control lists as unmodified clients meet them: users with passwords, who may do what their lists say."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)
from kafka import KafkaProducer
from kafka.admin import ACL, ACLFilter, ACLOperation, ACLPermissionType, KafkaAdminClient, ResourcePattern
from kafka.admin import ResourceType as PythonResourceType
from kafka.errors import TopicAuthorizationFailedError

if TYPE_CHECKING:
    from tests.conftest import BrokerProcess, StartBroker

pytestmark = pytest.mark.slow

WAIT_S = 30
USERS = ("admin", "alice", "bob")
PROPERTIES = {
    "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
    "sasl.enabled.mechanisms": "PLAIN",
    "listener.name.sasl_plaintext.plain.sasl.jaas.config": (
        "org.apache.kafka.common.security.plain.PlainLoginModule required "
        + " ".join(f'user_{user}="{user}-secret"' for user in USERS)
        + ";"
    ),
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:admin",
    "group.initial.rebalance.delay.ms": "0",
}


class Secured:
    """A broker with an authorizer, and clients of it by user."""

    def __init__(self, broker: BrokerProcess) -> None:
        self.broker = broker
        self.admin = AdminClient(self.properties("admin"))

    def properties(self, user: str) -> dict[str, Any]:
        return {
            "bootstrap.servers": self.broker.address,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": user,
            "sasl.password": f"{user}-secret",
        }

    def python_properties(self, user: str) -> dict[str, Any]:
        return {
            "bootstrap_servers": self.broker.address,
            "security_protocol": "SASL_PLAINTEXT",
            "sasl_mechanism": "PLAIN",
            "sasl_plain_username": user,
            "sasl_plain_password": f"{user}-secret",
        }

    def topic(self) -> str:
        name = f"test-{uuid.uuid4().hex[:8]}"
        self.admin.create_topics([NewTopic(name, 1, 1)])[name].result(WAIT_S)
        return name

    def allow(self, user: str, operation: AclOperation, kind: ResourceType, name: str, **other: Any) -> AclBinding:
        binding = AclBinding(
            kind,
            name,
            other.get("pattern", ResourcePatternType.LITERAL),
            f"User:{user}",
            "*",
            operation,
            other.get("permission", AclPermissionType.ALLOW),
        )
        self.admin.create_acls([binding])[binding].result(WAIT_S)
        return binding

    def produce(self, user: str, topic: str) -> KafkaError | None:
        """One record; why it was not taken."""
        failures: list[KafkaError | None] = []
        producer = Producer(self.properties(user) | {"message.timeout.ms": WAIT_S * 1000})
        producer.produce(topic, b"value", on_delivery=lambda error, _: failures.append(error))
        assert producer.flush(WAIT_S) == 0
        [failure] = failures
        return failure

    def consume(self, user: str, topic: str, group: str) -> KafkaError | bytes:
        """The first record, or why there is none."""
        consumer = Consumer(self.properties(user) | {"group.id": group, "auto.offset.reset": "earliest"})
        try:
            consumer.subscribe([topic])
            message = consumer.poll(WAIT_S)
            assert message is not None, "neither a record nor an error came"
            error = message.error()
            if error is not None:
                return error
            consumer.commit(message=message, asynchronous=False)
            value = message.value()
            assert isinstance(value, bytes)
            return value
        except KafkaException as failure:
            error = failure.args[0]
            assert isinstance(error, KafkaError)
            return error
        finally:
            consumer.close()


@pytest.fixture(scope="module")
def secured_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """One broker for all tests that do not restart it."""
    from tests.conftest import BrokerProcess

    broker = BrokerProcess(tmp_path_factory.mktemp("secured") / "data", 0, PROPERTIES)
    try:
        broker.await_ready()
        yield Secured(broker)
    finally:
        broker.close()


def test_a_producer_needs_the_right_to_write(secured_broker: Secured) -> None:
    topic = secured_broker.topic()
    failure = secured_broker.produce("alice", topic)
    assert failure is not None
    assert failure.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    secured_broker.allow("alice", AclOperation.WRITE, ResourceType.TOPIC, topic)
    assert secured_broker.produce("alice", topic) is None
    assert secured_broker.produce("bob", topic) is not None


def test_a_consumer_needs_the_right_to_read_its_topic_and_its_group(secured_broker: Secured) -> None:
    topic = secured_broker.topic()
    assert secured_broker.produce("admin", topic) is None
    allow = secured_broker.allow
    allow("alice", AclOperation.READ, ResourceType.TOPIC, topic[:8], pattern=ResourcePatternType.PREFIXED)
    failure = secured_broker.consume("alice", topic, "readers")
    assert isinstance(failure, KafkaError)
    assert failure.code() == KafkaError.GROUP_AUTHORIZATION_FAILED
    allow("alice", AclOperation.READ, ResourceType.GROUP, "readers")
    assert secured_broker.consume("alice", topic, "readers") == b"value"
    allow("bob", AclOperation.READ, ResourceType.GROUP, "readers")
    failure = secured_broker.consume("bob", topic, "readers")
    assert isinstance(failure, KafkaError)
    assert failure.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED


def test_a_denial_takes_back_at_once_what_a_list_allows(secured_broker: Secured) -> None:
    topic = secured_broker.topic()
    secured_broker.allow("alice", AclOperation.ALL, ResourceType.TOPIC, topic)
    producer = Producer(secured_broker.properties("alice"))
    failures: list[KafkaError | None] = []
    for denied in (False, True):
        if denied:
            deny = AclPermissionType.DENY
            secured_broker.allow("alice", AclOperation.WRITE, ResourceType.TOPIC, topic, permission=deny)
        producer.produce(topic, b"value", on_delivery=lambda error, _: failures.append(error))
        assert producer.flush(WAIT_S) == 0
    first, second = failures
    assert first is None
    assert second is not None
    assert second.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED


def test_topics_that_a_user_may_not_describe_are_not_listed(secured_broker: Secured) -> None:
    shown, hidden = secured_broker.topic(), secured_broker.topic()
    secured_broker.allow("bob", AclOperation.DESCRIBE, ResourceType.TOPIC, shown)
    topics = AdminClient(secured_broker.properties("bob")).list_topics(timeout=WAIT_S).topics
    assert shown in topics
    assert hidden not in topics


def test_only_who_may_alter_the_cluster_makes_lists(secured_broker: Secured) -> None:
    binding = AclBinding(
        ResourceType.TOPIC,
        "any",
        ResourcePatternType.LITERAL,
        "User:bob",
        "*",
        AclOperation.ALL,
        AclPermissionType.ALLOW,
    )
    bob = AdminClient(secured_broker.properties("bob"))
    with pytest.raises(KafkaException) as refused:
        bob.create_acls([binding])[binding].result(WAIT_S)
    assert refused.value.args[0].code() == KafkaError.CLUSTER_AUTHORIZATION_FAILED


def test_lists_are_found_and_removed_by_librdkafka(secured_broker: Secured) -> None:
    name = f"only-{uuid.uuid4().hex[:8]}"
    binding = secured_broker.allow("alice", AclOperation.ALTER, ResourceType.TOPIC, name)

    def about(pattern: ResourcePatternType) -> AclBindingFilter:
        everybody: Any = None
        anything = (everybody, everybody, AclOperation.ANY, AclPermissionType.ANY)
        return AclBindingFilter(ResourceType.TOPIC, name, pattern, *anything)

    wanted, exact = about(ResourcePatternType.MATCH), about(ResourcePatternType.LITERAL)
    assert binding in secured_broker.admin.describe_acls(wanted).result(WAIT_S)
    assert secured_broker.admin.delete_acls([exact])[exact].result(WAIT_S) == [binding]
    assert binding not in secured_broker.admin.describe_acls(wanted).result(WAIT_S)


def test_kafka_python_makes_finds_and_removes_lists_and_sees_denials(secured_broker: Secured) -> None:
    topic = secured_broker.topic()
    admin = KafkaAdminClient(**secured_broker.python_properties("admin"))
    pattern = ResourcePattern(PythonResourceType.TOPIC, topic)
    acl = ACL("User:bob", "*", ACLOperation.WRITE, ACLPermissionType.ALLOW, pattern)
    wanted = ACLFilter("User:bob", "*", ACLOperation.ANY, ACLPermissionType.ANY, pattern)
    producer = KafkaProducer(**secured_broker.python_properties("bob"), enable_idempotence=False)
    try:
        with pytest.raises(TopicAuthorizationFailedError):
            producer.send(topic, b"value").get(WAIT_S)
        admin.create_acls([acl])
        assert len(admin.describe_acls(wanted)[0]) == 1
        assert producer.send(topic, b"value").get(WAIT_S).offset == 0
        admin.delete_acls([wanted])
        assert not admin.describe_acls(wanted)[0]
    finally:
        producer.close()
        admin.close()


def test_lists_hold_after_a_kill(tmp_path: Path, start_broker: StartBroker) -> None:
    broker = start_broker(tmp_path / "data", properties=PROPERTIES)
    secured = Secured(broker)
    topic = secured.topic()
    secured.allow("alice", AclOperation.WRITE, ResourceType.TOPIC, topic)
    broker.kill()
    secured = Secured(start_broker(tmp_path / "data", properties=PROPERTIES))
    assert secured.produce("alice", topic) is None
    assert secured.produce("bob", topic) is not None
    assert "alice-secret" not in broker.log()
