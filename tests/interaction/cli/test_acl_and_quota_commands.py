"""`headwater acls` and `headwater quotas`, in the folder of a broker that does not run and against one that does."""

from __future__ import annotations

import json
import uuid
from typing import Any

import pytest

pytestmark = pytest.mark.slow


def listed(run: Any, *arguments: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in run(*arguments, "-o", "jsonl")[0].splitlines()]


def test_rules_are_made_found_and_removed_before_the_first_start(alone: Any) -> None:
    data = ("--data", "data")
    alone.run("acls", "add", *data, "--principal", "User:alice", "--producer", "--topic", "orders")
    alone.run(
        "acls", "add", *data, "--principal", "User:bob", "--consumer", "--topic", "ord", "--group", "g", "--prefix"
    )
    rules = listed(alone.run, "acls", "list", *data, "--topic", "orders")
    assert {(rule["principal"], rule["operation"], rule["pattern"]) for rule in rules} == {
        ("User:alice", "write", "literal"),
        ("User:alice", "create", "literal"),
        ("User:alice", "describe", "literal"),
        ("User:bob", "read", "prefixed"),
        ("User:bob", "describe", "prefixed"),
    }
    assert "give --yes" in alone.run("acls", "remove", *data, "--topic", "orders", exit_code=2)[1]
    alone.run("acls", "remove", *data, "--topic", "orders", "--yes")
    assert {rule["principal"] for rule in listed(alone.run, "acls", "list", *data)} == {"User:bob"}


def test_mistakes_in_rules_are_one_line(alone: Any) -> None:
    add = ("acls", "add", "--data", "data")
    assert "give --topic" in alone.fails(*add, "--principal", "User:a", exit_code=2)
    assert "give --operation" in alone.fails(*add, "--principal", "User:a", "--topic", "t", exit_code=2)
    assert "no colon" in alone.fails(*add, "--principal", "a", "--topic", "t", "--operation", "read", exit_code=2)


def test_a_broker_without_an_authorizer_says_so(headwater: Any) -> None:
    line = headwater.fails("acls", "add", "--principal", "User:a", "--topic", "t", "--operation", "read", exit_code=1)
    assert "No Authorizer is configured" in line


def test_quotas_are_set_and_taken_away_on_a_broker(headwater: Any) -> None:
    client_id = f"client-{uuid.uuid4().hex[:8]}"
    entity = ("--client-id", client_id)
    headwater.run("quotas", "set", *entity, "producer_byte_rate=1000000", "request_percentage=12.5")
    quotas = {row["quota"]: row["value"] for row in listed(headwater.run, "quotas", "list", *entity)}
    assert quotas == {"producer_byte_rate": 1_000_000, "request_percentage": 12.5}
    headwater.run("quotas", "set", *entity, "--unset", "producer_byte_rate", "--unset", "request_percentage")
    assert listed(headwater.run, "quotas", "list", *entity) == []
    assert "must be greater than 0" in headwater.fails("quotas", "set", *entity, "producer_byte_rate=0", exit_code=1)
    assert "not a number" in headwater.fails("quotas", "set", *entity, "producer_byte_rate=x", exit_code=2)


def test_quotas_are_set_before_the_first_start(alone: Any) -> None:
    alone.run("quotas", "set", "--data", "data", "--user", "*", "consumer_byte_rate=5")
    [row] = listed(alone.run, "quotas", "list", "--data", "data")
    assert row == {"user": "*", "quota": "consumer_byte_rate", "value": 5}


def test_the_properties_of_a_stopped_broker_name_its_metadata(alone: Any) -> None:
    (alone.folder / "broker.yaml").write_text("log.dirs: data\n")
    alone.run("acls", "add", "--config", "broker.yaml", "--principal", "User:alice", "--producer", "--topic", "orders")
    alone.run("quotas", "set", "--config", "broker.yaml", "--user", "alice", "consumer_byte_rate=5")
    alone.run("user", "add", "alice", "--config", "broker.yaml", stdin=b"secret\n")
    assert {rule["principal"] for rule in listed(alone.run, "acls", "list", "--data", "data")} == {"User:alice"}
    assert [row["user"] for row in listed(alone.run, "quotas", "list", "--data", "data")] == ["alice"]
    assert [row["user"] for row in listed(alone.run, "user", "list", "--config", "broker.yaml")] == ["alice"]


def test_mistakes_about_stopped_brokers_are_one_line(alone: Any) -> None:
    line = alone.fails("user", "list", "--data", "data", "--config", "broker.yaml", exit_code=2)
    assert "exclude each other" in line
    assert "headwater: user: broker.yaml cannot be read: No such file" in alone.fails(
        "user", "list", "--config", "broker.yaml", exit_code=2
    )
    (alone.folder / "broker.yaml").write_text(
        "zookeeper.connect: 127.0.0.1:1\nzookeeper.connection.timeout.ms: 500\nlog.dirs: data\n"
    )
    assert "127.0.0.1:1: ZooKeeper cannot be reached" in alone.fails(
        "user", "list", "--config", "broker.yaml", exit_code=1
    )
