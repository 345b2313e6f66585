"""`headwater ship` as a process, against a live broker: rotation, cuts, crashes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

if TYPE_CHECKING:
    from tests.conftest import TopicFactory

pytestmark = pytest.mark.slow

WAIT_S = 60
Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def ship(bootstrap_servers: str, tmp_path: Path) -> Iterator[Start]:
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: str, run_by: Sequence[str] = ()) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "headwater", "ship", "-b", bootstrap_servers]
        process = subprocess.Popen(
            [*run_by, *command, "--positions", str(tmp_path / "positions.json"), *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=os.environ | {"PYTHONSAFEPATH": "1"},
        )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


class Reader:
    """All messages of a topic of one partition, from its beginning."""

    def __init__(self, bootstrap_servers: str, topic: str) -> None:
        self._consumer = Consumer({"bootstrap.servers": bootstrap_servers, "group.id": f"{topic}-reader"})
        self._consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
        self.messages: list[Any] = []

    def await_values(self, done: Callable[[list[bytes]], bool]) -> list[bytes]:
        deadline = time.monotonic() + WAIT_S
        while not done(values := [message.value() for message in self.messages]):
            assert time.monotonic() < deadline, f"after {WAIT_S} s there are {values[-20:]}"
            self.messages += [message for message in self._consumer.consume(1000, 0.2) if not message.error()]
        return values

    def close(self) -> None:
        self._consumer.close()


@pytest.fixture
def topic(new_topic: TopicFactory) -> str:
    return new_topic(1)


@pytest.fixture
def reader(bootstrap_servers: str, topic: str) -> Iterator[Reader]:
    reader = Reader(bootstrap_servers, topic)
    yield reader
    reader.close()


def append(path: Path, *lines: str) -> None:
    with path.open("a") as stream:
        stream.writelines(f"{line}\n" for line in lines)


def stop(process: subprocess.Popen[str]) -> str:
    process.send_signal(signal.SIGTERM)
    output = process.communicate(timeout=WAIT_S)[0]
    assert process.returncode == 0, output
    return output


def test_lines_come_with_their_file_and_in_their_order(ship: Start, topic: str, reader: Reader, tmp_path: Path) -> None:
    path = tmp_path / "app.log"
    append(path, *(f"line {number}" for number in range(1000)))
    process = ship(str(path), "-t", topic)
    append(path, "one more")
    values = reader.await_values(lambda values: len(values) >= 1001)
    assert values == [*(f"line {number}".encode() for number in range(1000)), b"one more"]
    first = reader.messages[0]
    assert first.key() == str(path).encode()
    assert dict(first.headers())["file"] == str(path).encode()
    assert "Shipped 1001 lines" in stop(process)


def test_a_rotated_file_is_read_to_its_end_before_the_next_one(
    ship: Start, topic: str, reader: Reader, tmp_path: Path
) -> None:
    path = tmp_path / "app.log"
    append(path, "before")
    process = ship(str(path), "-t", topic)
    reader.await_values(lambda values: values == [b"before"])
    with path.open("a") as writer:
        path.rename(tmp_path / "app.log.1")
        append(path, "new file")
        writer.write("written after the rename\nhalf a")
        writer.flush()
        values = reader.await_values(lambda values: len(values) >= 3)
        assert values == [b"before", b"written after the rename", b"new file"]
        writer.write(" line\n")
    reader.await_values(lambda values: values[3:] == [b"half a line"])
    stop(process)


def test_a_file_that_is_copied_and_cut_begins_anew(ship: Start, topic: str, reader: Reader, tmp_path: Path) -> None:
    path = tmp_path / "app.log"
    append(path, "a long enough line", "another one")
    process = ship(str(path), "-t", topic)
    reader.await_values(lambda values: len(values) == 2)
    path.write_text("")
    append(path, "new")
    reader.await_values(lambda values: values[2:] == [b"new"])
    stop(process)


def test_a_pattern_takes_files_that_appear_later_from_their_beginning(
    ship: Start, topic: str, reader: Reader, tmp_path: Path
) -> None:
    append(tmp_path / "a.log", "old, not wanted")
    process = ship(str(tmp_path / "*.log"), "-t", topic, "--from-end")

    def is_followed(values: list[bytes]) -> bool:
        """Nothing else tells that it has looked."""
        if not values:
            append(tmp_path / "a.log", "is it followed?")
        return bool(values)

    reader.await_values(is_followed)
    append(tmp_path / "b.log", "first of b")
    append(tmp_path / "a.log", "new of a")
    values = reader.await_values(lambda values: {b"first of b", b"new of a"} <= set(values))
    assert sorted(set(values)) == [b"first of b", b"is it followed?", b"new of a"]
    stop(process)


def test_more_files_are_followed_than_the_soft_limit_of_open_files(
    ship: Start, topic: str, reader: Reader, tmp_path: Path
) -> None:
    count = 200
    for number in range(count):
        append(tmp_path / f"{number}.log", str(number))
    limited = ["sh", "-c", 'ulimit -Sn 100 && exec "$@"', "sh"]
    process = ship(f"{tmp_path}/*.log", "-t", topic, run_by=limited)
    values = reader.await_values(lambda values: len(values) >= count)
    assert sorted(map(int, values)) == list(range(count))
    stop(process)


def test_a_restart_goes_on_where_the_last_one_ended_even_in_a_file_that_was_rotated_meanwhile(
    ship: Start, topic: str, reader: Reader, tmp_path: Path
) -> None:
    path = tmp_path / "app.log"
    append(path, "one", "two")
    stop_after = ship(str(path), "-t", topic)
    reader.await_values(lambda values: len(values) == 2)
    stop(stop_after)
    append(path, "three, unshipped")
    path.rename(tmp_path / "app.log.1")
    append(path, "four, in the new file")
    process = ship(str(path), "-t", topic)
    values = reader.await_values(lambda values: len(values) >= 4)
    assert values == [b"one", b"two", b"three, unshipped", b"four, in the new file"]
    stop(process)


def test_kill_9_loses_no_line(ship: Start, topic: str, reader: Reader, tmp_path: Path) -> None:
    path = tmp_path / "app.log"
    total = 0
    for _ in range(3):
        process = ship(str(path), "-t", topic)
        for _ in range(20):
            append(path, *(f"{total + number}" for number in range(100)))
            total += 100
            time.sleep(0.05)
        process.kill()
        process.wait()
    process = ship(str(path), "-t", topic, "--to-end")
    assert process.wait(WAIT_S) == 0
    values = reader.await_values(lambda values: len(set(values)) == total)
    # Sent again is what was not noted; the first time each comes, it comes in order.
    assert list(dict.fromkeys(values)) == [str(number).encode() for number in range(total)]


def test_mistakes_are_said_in_one_line(ship: Start, topic: str, tmp_path: Path) -> None:
    (tmp_path / "positions.json").write_text("not json")
    process = ship(str(tmp_path / "a.log"), "-t", topic)
    output = process.communicate(timeout=WAIT_S)[0]
    assert process.returncode == 1
    assert "is not a file of positions" in output
    assert "Traceback" not in output


def run(*arguments: str, bootstrap_servers: str, positions: Path) -> subprocess.CompletedProcess[str]:
    """A shipper that ends by itself."""
    command = [sys.executable, "-m", "headwater", "ship", "-b", bootstrap_servers, "--positions", str(positions)]
    return subprocess.run(
        [*command, *arguments],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        env=os.environ | {"PYTHONSAFEPATH": "1"},
        check=False,
    )


def test_to_the_end_names_what_is_missing_and_sends_the_rest(
    bootstrap_servers: str, topic: str, reader: Reader, tmp_path: Path
) -> None:
    literal = tmp_path / "app[1].log"
    append(literal, "one")
    arguments = [str(literal), str(tmp_path / "none.log"), "-t", topic, "--to-end"]
    done = run(*arguments, bootstrap_servers=bootstrap_servers, positions=tmp_path / "positions.json")
    assert done.returncode == 1
    assert f"{tmp_path}/none.log cannot be read: No such file or directory" in done.stderr
    assert reader.await_values(bool) == [b"one"]


def test_lines_of_a_topic_with_a_small_limit_arrive_whole_or_in_pieces(
    bootstrap_servers: str, new_topic: TopicFactory, tmp_path: Path
) -> None:
    topic = new_topic(1, {"max.message.bytes": "20000"})
    small = [f"{number} " + "x" * 100 for number in range(2000)]
    append(tmp_path / "app.log", *small, "y" * 50_000)
    arguments = [str(tmp_path / "app.log"), "-t", topic, "--to-end"]
    done = run(*arguments, bootstrap_servers=bootstrap_servers, positions=tmp_path / "positions.json")
    assert done.returncode == 0, done.stderr
    reader = Reader(bootstrap_servers, topic)
    values = reader.await_values(lambda values: len(values) >= 2003)
    reader.close()
    assert values[:2000] == [line.encode() for line in small]
    assert b"".join(values[2000:]) == b"y" * 50_000
