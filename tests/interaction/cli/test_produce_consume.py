"""`headwater produce` and `headwater consume` against a broker, and without one."""

from __future__ import annotations

import json
import signal
import socket
import uuid
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from kafka import KafkaProducer

pytestmark = pytest.mark.slow


def test_lines_come_back_with_keys_headers_and_partition(headwater: Any, topic: str) -> None:
    _, err = headwater.run("produce", topic, "-k", ":", "-H", "source=test", "-p", "1", stdin=b"a:1\nb:\nc\n")
    assert err == f"Produced 3 messages to {topic}.\n"
    out, _ = headwater.run("consume", topic, "-e", "-f", r"%t %p %o [%k] [%v] %h %K\n")
    assert out.splitlines() == [
        f"{topic} 1 0 [a] [1] source=test 1",
        f"{topic} 1 1 [b] [] source=test 1",
        f"{topic} 1 2 [] [c] source=test -1",
    ]


def test_a_file_is_produced_and_json_tells_null_from_empty(headwater: Any, topic: str, tmp_path: Path) -> None:
    (tmp_path / "lines.txt").write_bytes("zürich\n\n".encode())
    headwater.run("produce", topic, "lines.txt", "-p", "0", "-z", "lz4")
    first, second = (json.loads(line) for line in headwater.run("consume", topic, "-e", "--json")[0].splitlines())
    assert (first["value"], first["key"], second["value"]) == ("zürich", None, "")


def test_one_key_stays_in_one_partition_in_order(headwater: Any, topic: str) -> None:
    lines = "".join(f"key{number % 5}:{number}\n" for number in range(500))
    headwater.run("produce", topic, "-k", ":", stdin=lines.encode())
    seen: dict[str, list[int]] = {}
    places: dict[str, set[str]] = {}
    for line in headwater.run("consume", topic, "-e", "-f", r"%p %k %v\n")[0].splitlines():
        partition, key, value = line.split()
        seen.setdefault(key, []).append(int(value))
        places.setdefault(key, set()).add(partition)
    assert all(values == list(range(int(key[3:]), 500, 5)) for key, values in seen.items())
    assert len(seen) == 5
    assert all(len(partitions) == 1 for partitions in places.values())


@pytest.mark.parametrize(
    ("options", "offsets"),
    [
        (("-o", "start"), [0, 1, 2, 3, 4]),
        (("-o", "3"), [3, 4]),
        (("-o", "-2"), [3, 4]),
        (("-o", "end"), []),
        (("-o", "99"), []),
        (("-o", "@2020-01-01"), [0, 1, 2, 3, 4]),
        (("-o", "@2099-01-01"), []),
        (("-n", "2"), [0, 1]),
        (("--from-beginning", "-n", "1"), [0]),
        (("-o", "3", "-p", "2"), [3, 4]),
        (("-p", "0"), []),
    ],
)
def test_consuming_starts_and_stops_where_it_is_told(
    headwater: Any, topic: str, options: tuple[str, ...], offsets: list[int]
) -> None:
    headwater.run("produce", topic, "-p", "2", stdin=b"x\n" * 5)
    out, _ = headwater.run("consume", topic, "-e", "-f", r"%o\n", *options)
    assert [int(line) for line in out.splitlines()] == offsets


def test_a_group_goes_on_where_it_was(headwater: Any, topic: str) -> None:
    group = f"group-{uuid.uuid4().hex[:8]}"
    headwater.run("produce", topic, "-p", "0", stdin=b"1\n2\n")
    assert headwater.run("consume", topic, "-g", group, "-o", "start", "-n", "1")[0] == "1\n"
    assert headwater.run("consume", topic, "-g", group, "-o", "start", "-e")[0] == "2\n"
    assert headwater.run("consume", topic, "-g", group, "-o", "start", "-e")[0] == ""


def test_a_tail_shows_what_arrives_and_ends_quietly_with_ctrl_c(headwater: Any, topic: str) -> None:
    process = headwater.start("consume", topic, "-o", "start", "-p", "0")
    headwater.run("produce", topic, "-p", "0", stdin=b"now\n")
    assert process.stdout.readline() == b"now\n"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (130, b"", b"")


def test_lines_before_one_that_is_too_large_are_delivered(headwater: Any, topic: str) -> None:
    lines = b"".join(b"%d\n" % number for number in range(1000))
    err = headwater.fails("produce", topic, stdin=lines + b"x" * 1_200_000 + b"\nafter\n", exit_code=1)
    assert f"1 messages to {topic!r} were not delivered, 1000 were: line 1001: Message size too large" in err
    assert len(headwater.run("consume", topic, "-e")[0].splitlines()) == 1000


@pytest.mark.parametrize(("limit", "lines"), [("100000", b"x" * 110 + b"\n"), ("4000000", b"x" * 2_000_000 + b"\n")])
def test_batches_are_as_large_as_the_topic_allows(headwater: Any, limit: str, lines: bytes) -> None:
    topic = f"cli.{uuid.uuid4().hex[:12]}"
    headwater.run("topic", "create", topic, "-p", "1", "--config", f"max.message.bytes={limit}")
    count = max(1, 400_000 // len(lines))
    _, err = headwater.run("produce", topic, stdin=lines * count)
    assert err == f"Produced {count} messages to {topic}.\n"
    headwater.run("topic", "delete", topic, "--yes")


def test_sigterm_ends_the_input_and_what_was_read_is_delivered_and_counted(headwater: Any, topic: str) -> None:
    tail = headwater.start("consume", topic, "-o", "start", "-n", "1")
    process = headwater.start("produce", topic)
    process.stdin.write(b"one\ntwo\n")
    process.stdin.flush()
    assert tail.communicate(timeout=60)[0] in {b"one\n", b"two\n"}  # the producer has read them
    process.send_signal(signal.SIGTERM)
    # stdin stays open: the command must not wait for its end.
    assert process.stderr.readline() == f"Produced 2 messages to {topic}.\n".encode()
    assert process.wait(timeout=60) == 128 + signal.SIGTERM
    process.communicate()
    assert len(headwater.run("consume", topic, "-e")[0].splitlines()) == 2


def test_sigterm_leaves_the_group_and_keeps_what_was_read(headwater: Any, topic: str, bootstrap_servers: str) -> None:
    group = f"group-{uuid.uuid4().hex[:8]}"
    headwater.run("produce", topic, "-p", "0", stdin=b"1\n2\n")
    process = headwater.start("consume", topic, "-g", group, "-o", "start")
    assert [process.stdout.readline() for _ in range(2)] == [b"1\n", b"2\n"]
    process.send_signal(signal.SIGTERM)
    assert process.communicate(timeout=60) == (b"", b"")
    assert process.returncode == 128 + signal.SIGTERM
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    assert admin.describe_consumer_groups([group])[group].result(timeout=30).members == []
    assert committed(bootstrap_servers, group, topic)[0] == 2


def committed(bootstrap_servers: str, group: str, topic: str) -> dict[int, int]:
    """The group's offset of each of the topic's three partitions."""
    consumer = Consumer({"bootstrap.servers": bootstrap_servers, "group.id": group})
    try:
        found = consumer.committed([TopicPartition(topic, partition) for partition in range(3)], timeout=30)
    finally:
        consumer.close()
    return {part.partition: part.offset for part in found}


def test_a_group_that_read_a_transaction_to_its_end_has_no_lag(
    headwater: Any, topic: str, bootstrap_servers: str
) -> None:
    producer = Producer({"bootstrap.servers": bootstrap_servers, "transactional.id": topic})
    producer.init_transactions()
    for end in (producer.commit_transaction, producer.abort_transaction):
        producer.begin_transaction()
        producer.produce(topic, b"x", partition=0)
        producer.flush()
        end()
    group = f"group-{uuid.uuid4().hex[:8]}"
    assert headwater.run("consume", topic, "-g", group, "-o", "start", "-e")[0] == "x\n"
    # A message, its marker, an aborted message, its marker.
    assert committed(bootstrap_servers, group, topic) == {0: 4, 1: 0, 2: 0}


def test_added_partitions_are_read_and_a_deleted_topic_ends_the_command(headwater: Any) -> None:
    topic = f"cli.{uuid.uuid4().hex[:12]}"
    headwater.run("topic", "create", topic, "-p", "1")
    headwater.run("produce", topic, stdin=b"first\n")
    alone = headwater.start("consume", topic, "-o", "start")
    member = headwater.start("consume", topic, "-o", "start", "-g", topic)
    assert (alone.stdout.readline(), member.stdout.readline()) == (b"first\n", b"first\n")
    headwater.run("topic", "alter", topic, "-p", "3")
    headwater.run("produce", topic, "-p", "2", stdin=b"second\n")
    assert (alone.stdout.readline(), member.stdout.readline()) == (b"second\n", b"second\n")
    headwater.run("topic", "delete", topic, "--yes")
    for process in (alone, member):
        _, err = process.communicate(timeout=60)
        assert process.returncode == 1
        assert b"deleted" in err.splitlines()[-1], err


def test_an_empty_value_can_be_a_tombstone(headwater: Any, topic: str) -> None:
    headwater.run("produce", topic, "-k", ":", "-p", "0", "-Z", stdin=b"a:1\na:\n")
    out, _ = headwater.run("consume", topic, "-e", "-f", r"%k %S\n")
    assert out == "a 1\na -1\n"


class NotUtf8(str):
    """A header name as a client that does not check may send it."""

    __slots__ = ()

    def encode(self, *_: object) -> bytes:
        return b"\xff"


def test_headers_may_be_any_bytes(headwater: Any, topic: str, bootstrap_servers: str) -> None:
    headwater.run("produce", topic, "-p", "0", "-H", b"bin=\xff", stdin=b"x\n")
    line = headwater.run("consume", topic, "-e", "-J")[0]
    assert json.loads(line)["headers"] == [["bin", "/w==", "base64"]]
    assert "--header" in headwater.fails("produce", topic, "-H", b"\xff=bin", stdin=b"x\n", exit_code=2)
    producer = KafkaProducer(bootstrap_servers=bootstrap_servers)
    producer.send(topic, b"y", partition=1, headers=[(NotUtf8("x"), b"1")]).get(30)
    producer.close()
    out, err = headwater.run("consume", topic, "-e", "-p", "1", "-f", r"%v %h\n")
    assert out == "y \n"
    assert "offset 0 of partition 1" in err


def test_streams_that_fail_are_one_line(headwater: Any, topic: str) -> None:
    (headwater.folder / "lines").write_text("zürich\n")
    assert "standard input cannot be read" in headwater.shell(f"$H produce {topic} <&-", 1)[1]
    headwater.shell(f"$H produce {topic} < lines 2>&-", 0)
    group = f"$H consume {topic} -e -o start -g {topic}"
    assert "standard output is closed" in headwater.shell(f"{group} >&-", 1)[1]
    assert "standard output cannot be written: No space left" in headwater.shell(f"{group} >/dev/full", 1)[1]
    # What could not be written was not read, for the group.
    assert headwater.shell(f"{group} </dev/null", 0)[0].decode() == "zürich\n"
    assert headwater.shell("PYTHONIOENCODING=ascii $H topic list -o yaml | grep -c :", 0)[0].strip().isdigit()


def test_a_reader_that_leaves_ends_the_command_without_a_word(headwater: Any, topic: str) -> None:
    headwater.run("produce", topic, stdin=b"x" * 100 + b"\n" + (b"y" * 1000 + b"\n") * 2000)
    process = headwater.start("consume", topic, "-e")
    process.stdout.read(10)
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stdin.close()
    process.stderr.close()
    assert process.wait(timeout=60) == 1


def test_a_message_that_is_not_delivered_is_exit_code_1(headwater: Any, topic: str) -> None:
    line = headwater.fails("produce", topic, "-p", "7", stdin=b"x\n", exit_code=1)
    assert "1 messages" in line
    assert "were not delivered" in line
    assert "too large" in headwater.fails("produce", topic, stdin=b"x" * 2_000_000 + b"\n", exit_code=1)


@pytest.mark.parametrize(
    "arguments",
    [
        ("produce", "a/b"),
        ("produce", "{topic}", "no-such-file"),
        ("produce", "{topic}", "-k", ""),
        ("produce", "{topic}", "-k", r"\q"),
        ("produce", "{topic}", "-H", "name"),
        ("consume", "no-such-topic"),
        ("consume", "{topic}", "-p", "9"),
        ("consume", "{topic}", "-o", "soon"),
        ("consume", "{topic}", "-o", "@0001-01-01"),
        ("consume", "{topic}", "-f", "%q"),
        ("consume", "{topic}", "-g", b"\xff"),
        ("consume", "{topic}", "-b", b"\xff:1"),
        ("topic", "create", "t", "--config", b"\xff=1"),
        ("acls", "list", "--principal", b"User:\xff"),
        ("sql", "-e", b"select \xff"),
        ("consume", "{topic}", "-g", "g", "-o", "5"),
        ("consume", "{topic}", "-g", "g", "-p", "0"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(headwater: Any, topic: str, arguments: tuple[str | bytes, ...]) -> None:
    words = (word.format(topic=topic) if isinstance(word, str) else word for word in arguments)
    headwater.fails(*words, exit_code=2)


@pytest.mark.parametrize("arguments", [("produce", "t"), ("consume", "t"), ("topic", "list"), ("topic", "create", "t")])
def test_a_broker_that_is_not_there_is_one_line_and_exit_code_1(alone: Any, arguments: tuple[str, ...]) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
        line = alone.fails(*arguments, "-b", address, exit_code=1)
    assert f"no broker answers at {address}: Connection refused" in line
    assert "headwater up" in line
