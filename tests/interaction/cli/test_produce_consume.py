"""`headwater produce` and `headwater consume` against a broker, and without one."""

from __future__ import annotations

import json
import signal
import socket
import uuid
from pathlib import Path
from typing import Any

import pytest

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
        ("consume", "{topic}", "-f", "%q"),
        ("consume", "{topic}", "-g", "g", "-o", "5"),
        ("consume", "{topic}", "-g", "g", "-p", "0"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(headwater: Any, topic: str, arguments: tuple[str, ...]) -> None:
    headwater.fails(*(argument.format(topic=topic) for argument in arguments), exit_code=2)


@pytest.mark.parametrize("arguments", [("produce", "t"), ("consume", "t"), ("topic", "list"), ("topic", "create", "t")])
def test_a_broker_that_is_not_there_is_one_line_and_exit_code_1(alone: Any, arguments: tuple[str, ...]) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
        line = alone.fails(*arguments, "-b", address, exit_code=1)
    assert f"no broker answers at {address}: Connection refused" in line
    assert "headwater up" in line
