"""`headwater load --ready` against a real broker: records, idle partitions, open transactions, wrong names."""

from __future__ import annotations

import json
import time
import uuid
from datetime import UTC, datetime

import pytest
from confluent_kafka import Producer

from headwater.cli.main import main
from tests.conftest import TopicFactory

pytestmark = pytest.mark.slow

HOUR_MS = 3_600_000


def text(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat()


def ready(servers: str, *topics: str, until_ms: int, more: tuple[str, ...] = ()) -> int:
    return main(["load", "--ready", *topics, "-b", servers, "--until", text(until_ms), "--idle", "0.2", *more])


def produce(servers: str, topic: str, partition: int, timestamp_ms: int) -> None:
    producer = Producer({"bootstrap.servers": servers})
    producer.produce(topic, b"x", partition=partition, timestamp=timestamp_ms)
    assert producer.flush(30) == 0


def test_partitions_pass_by_records_and_by_the_clock(
    bootstrap_servers: str, new_topic: TopicFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    topic, now_ms = new_topic(2), int(time.time() * 1000)
    end_ms = now_ms - HOUR_MS
    produce(bootstrap_servers, topic, 0, end_ms - 1)
    # The hour is long over, and nothing is written to the topic.
    assert ready(bootstrap_servers, topic, until_ms=end_ms) == 0
    assert "every partition is past" in capsys.readouterr().out
    # With more lateness than has gone by, records alone decide.
    more = ("--lateness", "7200", "-o", "json")
    assert ready(bootstrap_servers, topic, until_ms=end_ms, more=more) == 75
    said = capsys.readouterr()
    waiting = [{"topic": topic, "partition": p, "reason": "has no record that late"} for p in (0, 1)]
    assert json.loads(said.out) == {"ready": False, "waiting": waiting}
    assert f"{topic}-0 has no record that late, {topic}-1 has no record that late" in said.err
    assert len(said.err.splitlines()) == 1
    produce(bootstrap_servers, topic, 0, end_ms + 2 * HOUR_MS)
    assert ready(bootstrap_servers, topic, until_ms=end_ms, more=more) == 75
    assert [each["partition"] for each in json.loads(capsys.readouterr().out)["waiting"]] == [1]
    produce(bootstrap_servers, topic, 1, end_ms + 2 * HOUR_MS + 1)
    assert ready(bootstrap_servers, topic, until_ms=end_ms, more=more) == 0
    assert json.loads(capsys.readouterr().out) == {"ready": True, "waiting": []}


def test_an_open_transaction_holds_an_interval_back(
    bootstrap_servers: str, new_topic: TopicFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    topic, end_ms = new_topic(), int(time.time() * 1000) - HOUR_MS
    produce(bootstrap_servers, topic, 0, end_ms - 1)
    producer = Producer({"bootstrap.servers": bootstrap_servers, "transactional.id": uuid.uuid4().hex})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, b"x", partition=0, timestamp=end_ms + 1)
    assert producer.flush(30) == 0
    assert ready(bootstrap_servers, topic, until_ms=end_ms) == 75
    assert f"{topic}-0 has an open transaction at offset 1" in capsys.readouterr().err
    producer.commit_transaction(30)
    assert ready(bootstrap_servers, topic, until_ms=end_ms) == 0


def test_mistakes_are_one_line(
    bootstrap_servers: str, new_topic: TopicFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    topic = new_topic()
    missing = f"{topic}-not"
    assert ready(bootstrap_servers, topic, missing, until_ms=0) == 2
    assert missing in capsys.readouterr().err
    for arguments in ([topic], [topic, "--until", "latest"], ["--until", "2013-01-01"], [topic, "--until", "soon"]):
        assert main(["load", "--ready", "-b", bootstrap_servers, *arguments]) == 2
        assert len(capsys.readouterr().err.splitlines()) == 1
    assert main(["load", topic, "--to", "/x", "--interval", "a/b", "--from", "last", "-b", bootstrap_servers]) == 2
    assert "--interval says start, end and name" in capsys.readouterr().err
    assert main(["load", topic, "--to", "/x", "--idle", "3", "-b", bootstrap_servers]) == 2
    assert ready("127.0.0.1:1", topic, until_ms=0) == 1
