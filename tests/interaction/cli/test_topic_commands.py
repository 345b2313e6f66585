"""`headwater topic` against a broker."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest
import yaml

pytestmark = pytest.mark.slow


def described(headwater: Any, topic: str, *options: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(headwater.run("topic", "describe", topic, "-o", "json", *options)[0])[0]
    return document


def test_a_topic_is_created_listed_and_described_in_every_format(headwater: Any, topic: str) -> None:
    assert topic in headwater.run("topic", "list")[0].split()
    rows = [json.loads(line) for line in headwater.run("topic", "list", "-o", "jsonl")[0].splitlines()]
    assert [row["partitions"] for row in rows if row["topic"] == topic] == [3]
    for output in ("json", "yaml"):
        (document,) = yaml.safe_load(headwater.run("topic", "describe", topic, "-o", output)[0])
        assert [part["partition"] for part in document["partitions"]] == [0, 1, 2]
    table = headwater.run("topic", "describe", topic)[0]
    assert table.startswith(f"topic {topic}: 3 partitions, replication factor 1, offsets span 0 messages\nPARTITION")


def test_a_topic_that_exists_is_an_error_unless_that_is_fine(headwater: Any, topic: str) -> None:
    assert "exists" in headwater.fails("topic", "create", topic, exit_code=2)
    out, err = headwater.run("topic", "create", topic, "--if-not-exists")
    assert (out, "exists already" in err) == ("", True)


def test_a_dry_run_creates_changes_and_deletes_nothing(headwater: Any, topic: str) -> None:
    assert "dry run" in headwater.run("topic", "create", f"{topic}.other", "--dry-run")[1]
    assert "dry run" in headwater.run("topic", "alter", topic, "-p", "5", "--dry-run")[1]
    assert "dry run" in headwater.run("topic", "alter", topic, "--set", "retention.ms=5", "--dry-run")[1]
    assert "dry run" in headwater.run("topic", "delete", topic, "--dry-run")[1]
    assert f"{topic}.other" not in headwater.run("topic", "list")[0].split()
    document = described(headwater, topic, "--all-configs")
    assert len(document["partitions"]) == 3
    assert "5" not in [config["value"] for config in document["configs"] if config["name"] == "retention.ms"]


def test_partitions_grow_and_configs_are_set_and_unset(headwater: Any, topic: str) -> None:
    headwater.run("topic", "alter", topic, "-p", "4", "--set", "retention.ms=3600000")
    document = described(headwater, topic)
    assert len(document["partitions"]) == 4
    assert [config["value"] for config in document["configs"] if config["name"] == "retention.ms"] == ["3600000"]
    headwater.run("topic", "alter", topic, "--unset", "retention.ms")
    assert [c for c in described(headwater, topic)["configs"] if c["name"] == "retention.ms"] == []


@pytest.mark.parametrize(
    "arguments",
    [
        ("topic", "create", "a/b"),
        ("topic", "create", "t", "-p", "0"),
        ("topic", "create", "t", "-c", "retention.ms"),
        ("topic", "create", "t", "-c", "retention.ms=long"),
        ("topic", "create", "t", "-c", "no.such.config=1"),
        ("topic", "describe", "no-such-topic"),
        ("topic", "delete", "no-such-topic", "--yes"),
        ("topic", "alter", "no-such-topic", "-p", "3"),
        ("topic", "alter", "no-such-topic", "--set", "retention.ms=5"),
        ("topic", "alter", "t"),
        ("topic", "list", "-o", "xml"),
        ("topic", "list", "-b", "localhost"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(headwater: Any, arguments: tuple[str, ...]) -> None:
    headwater.fails(*arguments, exit_code=2)


def test_a_count_cannot_shrink(headwater: Any, topic: str) -> None:
    assert "can only grow" in headwater.fails("topic", "alter", topic, "-p", "2", exit_code=2)


def test_without_a_terminal_delete_wants_yes(headwater: Any, topic: str) -> None:
    assert "--yes" in headwater.fails("topic", "delete", topic, exit_code=2)
    assert topic in headwater.run("topic", "list")[0].split()


def test_at_a_terminal_delete_asks_and_no_keeps_the_topic(headwater: Any, topic: str) -> None:
    controller, terminal = os.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "headwater", "topic", "delete", topic],
        stdin=terminal, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=headwater.environment, cwd=headwater.folder,
    )  # fmt: skip
    os.close(terminal)
    os.write(controller, b"n\n")
    _, err = process.communicate(timeout=60)
    os.close(controller)
    assert (process.returncode, b"cannot be undone" in err) == (130, True)
    assert topic in headwater.run("topic", "list")[0].split()


def test_one_unknown_name_keeps_the_others_from_being_deleted(headwater: Any, topic: str) -> None:
    headwater.fails("topic", "delete", topic, "no-such-topic", "--yes", exit_code=2)
    assert topic in headwater.run("topic", "list")[0].split()
