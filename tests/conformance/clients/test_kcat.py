"""kcat, as it is used in shells: the program itself, with an older librdkafka than the one in our environment."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pytest

if TYPE_CHECKING:
    from tests.conformance.conftest import ConfluentClient
    from tests.conftest import TopicFactory

pytestmark = pytest.mark.slow

LIMIT_S = 60
NULL_SIZE = -1


class Kcat(Protocol):
    """Runs kcat against the broker and returns what it printed; fails when it does not end well."""

    def __call__(self, *arguments: str, stdin: str = "", ends: int = 0) -> str: ...


@pytest.fixture(scope="session")
def kcat_path() -> str:
    """`make test` installs it where it can; only where that failed is there nothing to start."""
    for name in ("kcat", "kafkacat"):
        if path := shutil.which(name):
            return path
    pytest.skip("kcat is missing: apt install kcat (Debian, Ubuntu), brew install kcat (macOS)")


@pytest.fixture
def kcat(kcat_path: str, bootstrap_servers: str) -> Kcat:
    def run(*arguments: str, stdin: str = "", ends: int = 0) -> str:
        done = subprocess.run(
            [kcat_path, "-b", bootstrap_servers, *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        assert done.returncode == ends, f"kcat ended with {done.returncode}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
        return done.stdout + (done.stderr if ends else "")

    return run


def consumed(kcat: Kcat, topic: str, *arguments: str) -> list[dict[str, Any]]:
    """Everything in a topic."""
    output = kcat("-C", "-t", topic, "-o", "beginning", "-e", "-q", "-J", *arguments)
    return [json.loads(line) for line in output.splitlines()]


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("idempotent", ["false", "true"])
def test_what_is_produced_comes_back(kcat: Kcat, new_topic: TopicFactory, codec: str, idempotent: str) -> None:
    topic = new_topic()
    lines = "".join(f"key{i}:value {i} {'x' * 50}\n" for i in range(500))
    settings = ("-X", f"enable.idempotence={idempotent}", "-z", codec)
    kcat("-P", "-t", topic, "-K:", "-H", "origin=EWR", "-H", "origin=JFK", "-H", "none", *settings, stdin=lines)
    found = consumed(kcat, topic, "-X", "check.crcs=true")
    assert [r["offset"] for r in found] == list(range(500))
    assert [r["key"] for r in found] == [f"key{i}" for i in range(500)]
    assert [r["payload"] for r in found] == [f"value {i} {'x' * 50}" for i in range(500)]
    assert {tuple(r["headers"]) for r in found} == {("origin", "EWR", "origin", "JFK", "none", None)}


def test_null_and_empty_are_told_apart(kcat: Kcat, new_topic: TopicFactory) -> None:
    topic = new_topic(config={"cleanup.policy": "compact"})
    kcat("-P", "-t", topic, "-K:", "-Z", stdin="gone:\nkept:value\n")
    printed = kcat("-C", "-t", topic, "-o", "beginning", "-e", "-q", "-f", "%k %K %S %o\\n")
    assert printed.splitlines() == [f"gone 4 {NULL_SIZE} 0", "kept 4 5 1"]


def test_keyless_records_are_refused_by_a_compacted_topic(kcat: Kcat, new_topic: TopicFactory) -> None:
    topic = new_topic(config={"cleanup.policy": "compact"})
    assert "Broker failed to validate record" in kcat("-P", "-t", topic, stdin="no key\n", ends=1)
    assert consumed(kcat, topic) == []


def test_a_whole_file_is_one_record_and_too_large_ones_are_refused(
    kcat: Kcat, new_topic: TopicFactory, tmp_path: Path
) -> None:
    topic = new_topic(config={"max.message.bytes": "100000"})
    file = tmp_path / "file"
    file.write_text("line\n" * 10_000)
    kcat("-P", "-t", topic, str(file))
    assert [r["payload"] for r in consumed(kcat, topic)] == ["line\n" * 10_000]
    file.write_text("line\n" * 100_000)
    assert "Message size too large" in kcat("-P", "-t", topic, str(file), ends=1)


def test_partitions_are_chosen_and_listed(kcat: Kcat, new_topic: TopicFactory, bootstrap_servers: str) -> None:
    topic = new_topic(partitions=3)
    for partition in range(3):
        kcat("-P", "-t", topic, "-p", str(partition), stdin=f"to {partition}\n")
    found = consumed(kcat, topic, "-p", "1")
    assert [(r["partition"], r["payload"]) for r in found] == [(1, "to 1")]
    listing = json.loads(kcat("-L", "-J", "-t", topic))
    [described] = listing["topics"]
    assert [p["partition"] for p in described["partitions"]] == [0, 1, 2]
    assert {p["leader"] for p in described["partitions"]} == {listing["brokers"][0]["id"]}
    assert [b["name"] for b in listing["brokers"]] == [bootstrap_servers]
    assert topic in {each["topic"] for each in json.loads(kcat("-L", "-J"))["topics"]}


def test_offsets_are_queried_by_time(
    kcat: Kcat, new_topic: TopicFactory, second_client: ConfluentClient, record: Any
) -> None:
    topic = new_topic()
    second_client.produce(topic, [record(b"k", b"v", (), 1_000_000 + 100 * i) for i in range(10)])

    def query(timestamp: int) -> int:
        [line] = kcat("-Q", "-t", f"{topic}:0:{timestamp}").splitlines()
        return int(line.rpartition(" ")[2])

    assert query(1_000_450) == 5
    assert query(0) == 0
    assert query(-2) == 0
    assert query(-1) == 10
    assert query(2_000_000) == -1
    since = kcat("-C", "-t", topic, "-o", "s@1000700", "-e", "-q", "-f", "%o ")
    assert since.split() == ["7", "8", "9"]
    assert kcat("-C", "-t", topic, "-o", "-2", "-e", "-q", "-f", "%o ").split() == ["8", "9"]


@pytest.fixture
def group() -> Iterator[str]:
    yield f"group-{uuid.uuid4().hex[:8]}"


@pytest.mark.parametrize("strategy", ["range", "roundrobin", "cooperative-sticky"])
def test_a_group_goes_on_where_it_left_off(kcat: Kcat, new_topic: TopicFactory, group: str, strategy: str) -> None:
    topic = new_topic(partitions=2)
    settings = ("-X", "auto.offset.reset=earliest", "-X", f"partition.assignment.strategy={strategy}")

    def read() -> list[str]:
        return sorted(kcat("-G", group, "-e", "-q", *settings, "-f", "%s\\n", topic).splitlines())

    for partition in (0, 1):
        kcat("-P", "-t", topic, "-p", str(partition), stdin=f"first {partition}\n")
    assert read() == ["first 0", "first 1"]
    kcat("-P", "-t", topic, "-p", "1", stdin="second\n")
    assert read() == ["second"]
    assert read() == []


def test_members_of_a_group_share_its_partitions(
    kcat: Kcat, kcat_path: str, bootstrap_servers: str, new_topic: TopicFactory, group: str, tmp_path: Path
) -> None:
    topic = new_topic(partitions=2)
    outputs = [tmp_path / "first", tmp_path / "second"]
    members = []
    try:
        for output in outputs:
            with output.open("w") as file:
                command = [kcat_path, "-b", bootstrap_servers, "-G", group, "-u", "-X", "auto.offset.reset=earliest"]
                command += ["-X", "heartbeat.interval.ms=100", "-f", "%p %s\\n", topic]
                members.append(
                    subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT)
                )
        await_text(outputs, ["assigned: ", "assigned: "])
        for partition in (0, 1):
            kcat("-P", "-t", topic, "-p", str(partition), stdin=f"to {partition}\n")
        await_text(outputs, ["to ", "to "])
        got = [line for output in outputs for line in output.read_text().splitlines() if " to " in line]
        assert sorted(got) == ["0 to 0", "1 to 1"]
    finally:
        for member in members:
            member.terminate()
        for member in members:
            member.wait(LIMIT_S)


def await_text(files: list[Path], wanted: list[str]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not all(text in file.read_text() for file, text in zip(files, wanted, strict=True)):
        assert time.monotonic() < deadline, [file.read_text() for file in files]
        time.sleep(0.05)


def test_a_transaction_is_seen_whole(kcat: Kcat, new_topic: TopicFactory) -> None:
    topic = new_topic()
    kcat("-P", "-t", topic, "-X", f"transactional.id=t-{uuid.uuid4().hex[:8]}", stdin="one\ntwo\n")
    for isolation in ("read_committed", "read_uncommitted"):
        found = consumed(kcat, topic, "-X", f"isolation.level={isolation}")
        assert [r["payload"] for r in found] == ["one", "two"]


def test_an_unknown_topic_is_told_as_such(kcat: Kcat) -> None:
    missing = "test-missing-" + uuid.uuid4().hex[:8]
    told = kcat("-C", "-t", missing, "-e", "-q", "-X", "allow.auto.create.topics=false", ends=1)
    assert "Unknown topic or partition" in told
