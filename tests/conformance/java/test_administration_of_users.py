"""Lists, users, quotas, records and leaders, administered by Kafka's own tools."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

if TYPE_CHECKING:
    from tests.conformance.java.conftest import KafkaTool
    from tests.conftest import StartBroker

pytestmark = pytest.mark.slow

PROPERTIES = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}
CONFIGS = "kafka.admin.ConfigCommand"


class Tool(Protocol):
    """Runs a tool's main class on the broker, and gives what it printed."""

    def __call__(self, main: str, *arguments: str) -> str: ...


@pytest.fixture
def address(start_broker: StartBroker, tmp_path: Path) -> str:
    return start_broker(tmp_path / "data", properties=PROPERTIES).address


@pytest.fixture
def tool(kafka_tool: KafkaTool, address: str) -> Tool:
    return lambda main, *arguments: kafka_tool(main, "--bootstrap-server", address, *arguments)


def test_access_control_lists(tool: Tool) -> None:
    acls = "org.apache.kafka.tools.AclCommand"
    resource = ["--topic", "orders", "--resource-pattern-type", "prefixed"]
    rights = ["--operation", "Read", "--operation", "Describe", "--allow-host", "10.0.0.1"]
    assert "Adding ACLs" in tool(acls, "--add", "--allow-principal", "User:alice", *rights, *resource)
    tool(acls, "--add", "--deny-principal", "User:bob", "--operation", "Read", "--topic", "orders", "--group", "g")
    listed = tool(acls, "--list", *resource)
    assert "ResourcePattern(resourceType=TOPIC, name=orders, patternType=PREFIXED)" in listed
    assert "(principal=User:alice, host=10.0.0.1, operation=READ, permissionType=ALLOW)" in listed
    assert "operation=DESCRIBE" in listed
    every = tool(acls, "--list")
    assert "(principal=User:bob, host=*, operation=READ, permissionType=DENY)" in every
    assert "resourceType=GROUP, name=g" in every
    tool(acls, "--remove", "--force", *resource)
    assert "User:alice" not in tool(acls, "--list")


def test_users_and_quotas(tool: Tool) -> None:
    user = ["--entity-type", "users", "--entity-name", "alice"]
    # One at a time: Kafka alters a user once in a request.
    for secret in ("SCRAM-SHA-256=[iterations=8192,password=alice-secret]", "SCRAM-SHA-512=[password=alice-secret]"):
        tool(CONFIGS, "--alter", *user, "--add-config", secret)
    described = tool(CONFIGS, "--describe", *user)
    assert "SCRAM-SHA-256=iterations=8192" in described
    assert "SCRAM-SHA-512=iterations=4096" in described
    assert "alice-secret" not in described
    tool(CONFIGS, "--alter", *user, "--delete-config", "SCRAM-SHA-256")
    assert "SCRAM-SHA-256" not in tool(CONFIGS, "--describe", *user)

    client = [*user, "--entity-type", "clients", "--entity-default"]
    tool(CONFIGS, "--alter", *client, "--add-config", "producer_byte_rate=1048576,request_percentage=50")
    described = tool(CONFIGS, "--describe", *client)
    assert "producer_byte_rate=1048576" in described
    assert "request_percentage=50" in described
    host = ["--entity-type", "ips", "--entity-name", "127.0.0.2"]
    tool(CONFIGS, "--alter", *host, "--add-config", "connection_creation_rate=100")
    assert "connection_creation_rate=100" in tool(CONFIGS, "--describe", *host)


def test_records_are_deleted_and_leaders_elected(tool: Tool, address: str, tmp_path: Path) -> None:
    admin = AdminClient({"bootstrap.servers": address})
    admin.create_topics([NewTopic("orders", 1, 1)])["orders"].result(30)
    producer = Producer({"bootstrap.servers": address})
    for _ in range(10):
        producer.produce("orders", b"x", partition=0)
    assert producer.flush(30) == 0
    wanted = tmp_path / "offsets.json"
    wanted.write_text(json.dumps({"partitions": [{"topic": "orders", "partition": 0, "offset": 7}], "version": 1}))
    deleted = tool("org.apache.kafka.tools.DeleteRecordsCommand", "--offset-json-file", str(wanted))
    assert "partition: orders-0\tlow_watermark: 7" in deleted
    consumer = Consumer({"bootstrap.servers": address, "group.id": "g"})
    assert consumer.get_watermark_offsets(TopicPartition("orders", 0), 30) == (7, 10)
    consumer.close()
    arguments = ["--election-type", "PREFERRED", "--topic", "orders", "--partition", "0"]
    elected = tool("org.apache.kafka.tools.LeaderElectionCommand", *arguments)
    assert "Valid replica already elected for partitions" in elected
