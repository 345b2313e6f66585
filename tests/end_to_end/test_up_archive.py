"""`headwater up --archive`: a node that keeps archives, and what becomes of it when the archiver dies."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic

from headwater.pipelines.archive.status_record import ArchiverStatus, decode_archiver_status
from headwater.pipelines.monitoring.status import STATUS_TOPIC
from headwater.pipelines.seam.table_offsets import table_offsets
from tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

READY = re.compile(r"Headwater is ready: kafka (\S+), http (\S+), metrics (\S+)\n")
#: Topics are archived that enable it by their configs.
TEXT = "archive: {root: lake, freshness: 1 second}\n"
BEGIN_S = 300.0
UP = ("up", "--data", "data", "--kafka-port", "0", "--http-port", "0", "--archive", "archive.yaml", "--sql")


@pytest.fixture
def node(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    (tmp_path / "archive.yaml").write_text(TEXT)
    with (tmp_path / "errors").open("wb") as errors:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "headwater", *UP],
            cwd=tmp_path,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,
        )
    yield process
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def archivers(session: int) -> list[int]:
    """The archivers of a node: not the JVM and the workers, which their drivers end."""
    found = []
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError, IndexError):
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            words = (folder / "cmdline").read_bytes().split(b"\0")
            if int(fields[3]) == session and fields[0] != "Z" and b"archive" in words and b"--ready-fd" in words:
                found.append(int(folder.name))
    return found


def last_status(servers: str) -> ArchiverStatus:
    """The status of the archive of `flights`, as its topic has it."""
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "status", "enable.partition.eof": True})
    found: bytes | None = None
    try:
        consumer.assign([TopicPartition(STATUS_TOPIC, 0, 0)])
        while True:
            message = consumer.poll(60)
            assert message is not None
            error = message.error()
            if error is not None:
                assert error.code() == KafkaError._PARTITION_EOF
                break
            found = message.value()
    finally:
        consumer.close()
    assert found is not None
    return decode_archiver_status(found)


def counted(http: str, name: str) -> int:
    """The rows of a relation, by the node's REST API."""
    body = json.dumps({"statement": f"SELECT count(*) FROM {name}", "timeout_ms": 280_000}).encode()
    request = urllib.request.Request(
        f"{http}/headwater/v1/sql", body, {"Content-Type": "application/json"}, method="POST"
    )
    with urllib.request.urlopen(request, timeout=BEGIN_S) as response:
        _, row, end = response.read().splitlines()
    assert "end" in json.loads(end)
    found = json.loads(row)
    return int(found[0] if isinstance(found, list) else next(iter(found.values())))


def is_known(http: str, name: str) -> bool:
    """Whether a query may name the relation."""
    try:
        counted(http, name)
    except urllib.error.HTTPError as error:
        assert error.code < 500, error.read()
        return False
    return True


def test_a_node_keeps_archives_and_starts_an_archiver_again(node: subprocess.Popen[str], tmp_path: Path) -> None:
    assert node.stdout is not None
    ready = READY.fullmatch(node.stdout.readline())
    assert ready is not None, (tmp_path / "errors").read_text()
    servers = ready[1]
    admin = AdminClient({"bootstrap.servers": servers})
    topics = [NewTopic("flights", 1, config={"headwater.archive.enable": "true"}), NewTopic("others", 1)]
    for made in admin.create_topics(topics).values():
        made.result(60)
    producer = Producer({"bootstrap.servers": servers})

    def archived() -> int:
        offsets = table_offsets(str(tmp_path / "lake" / "flights"))
        return 0 if offsets is None else offsets.ends.get(0, 0)

    for count in (1, 2):
        producer.produce("flights", str(count).encode())
        assert producer.flush(60) == 0
        until(lambda count=count: archived() == count, patience_s=BEGIN_S)  # type: ignore[misc]
        [archiver] = archivers(node.pid)
        os.kill(archiver, signal.SIGKILL)
        until(lambda dead=archiver: archivers(node.pid) not in ([], [dead]), patience_s=BEGIN_S)  # type: ignore[misc]
    producer.produce("flights", b"3")
    assert producer.flush(60) == 0
    until(lambda: archived() == 3, patience_s=BEGIN_S)
    # That of the archiver before is there until this one writes its own.
    [archiver] = archivers(node.pid)
    until(lambda: (last_status(servers).process, last_status(servers).rows) == (archiver, 1))
    assert last_status(servers).state == "running"
    # The node's SQL knows the archives: a record behind the table is there at once.
    producer.produce("flights", b"4")
    assert producer.flush(60) == 0
    assert counted(ready[2], "flights") == 4
    assert counted(ready[2], "lake.flights") >= 3
    # So it does those that are enabled while it runs.
    producer.produce("others", b"1")
    assert producer.flush(60) == 0
    enable = ConfigEntry("headwater.archive.enable", "true", incremental_operation=AlterConfigOpType.SET)
    changed = ConfigResource(ConfigResource.Type.TOPIC, "others", incremental_configs=[enable])
    for done in admin.incremental_alter_configs([changed]).values():
        done.result(60)
    until(lambda: is_known(ready[2], "lake.others"), patience_s=BEGIN_S)
    assert counted(ready[2], "lake.others") == 1
    node.send_signal(signal.SIGTERM)
    assert node.wait(BEGIN_S) == 0
    assert archivers(node.pid) == []


def test_a_file_that_cannot_be_read_ends_the_start(tmp_path: Path) -> None:
    (tmp_path / "archive.yaml").write_text("archive: {root: lake, topics: {flights: {form: x}}}\n")
    command = [sys.executable, "-P", "-m", "headwater", *UP]
    ended = subprocess.run(command, check=False, cwd=tmp_path, capture_output=True, text=True, timeout=BEGIN_S)
    assert ended.returncode == 1
    assert "archive.yaml:1" in ended.stderr
    assert "form" in ended.stderr
    assert "Traceback" not in ended.stderr
