"""A pipeline of three stages over numbered records, killed in whatever way, and the verdict on what it wrote.

Whatever is killed: the output topics, read with read_committed, the dead letters and the Delta tables hold exactly what
the source has, each key in the source's order.
"""

from __future__ import annotations

import json
import subprocess
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.end_to_end.delta_log import delta_rows
from tests.end_to_end.kill.killed_processes import Drivers, committed_records, ended

TOPICS = ("numbers", "middle", "left", "right", "last", "numbers.dead_letters")
PARTITIONS = 3
KEYS = 11
PIPELINE = """\
pipeline: killed
topics:
  numbers: {partitions: 3, value: json, schema: number.json}
  middle: {partitions: 3}
  left: {partitions: 3}
  right: {partitions: 3}
  last: {partitions: 3}
stages:
  - name: first
    from: {topic: numbers, max_offsets_per_trigger: 150}
    expect: [{name: positive, that: n >= 0}]
    sql: SELECT * FROM numbers
    to:
      - {topic: middle, key: k}
      - {delta: lake/first}
  - name: second
    from: {topic: middle}
    sql: SELECT n, k FROM middle
    to:
      - {topic: left, key: k}
      - {topic: right, key: k, value: CAST(n AS STRING), headers: {k: k}}
  - name: third
    from: {topic: left}
    to:
      - {topic: last, key: k}
      - {delta: lake/third}
"""
SCHEMA = {"type": "object", "required": ["n", "k"], "properties": {"n": {"type": "integer"}, "k": {"type": "string"}}}


def source_record(number: int) -> tuple[bytes, bytes]:
    """Each number has one key for good; some records are no JSON, some break the expectation."""
    key = f"k{number % KEYS}"
    if number % 50 == 49:
        return key.encode(), b"{%d" % number
    value = {"n": -number - 1 if number % 70 == 69 else number, "k": key}
    return key.encode(), json.dumps(value).encode()


def is_good(number: int) -> bool:
    return number % 50 != 49 and number % 70 != 69


class NumbersPipeline:
    """The pipeline's folder, its topics, and what was produced so far."""

    def __init__(self, folder: Path, servers: str, replicas: int = 1) -> None:
        self.folder = folder
        self.servers = servers
        self.produced = 0
        self.state = folder / "state"
        (folder / "killed.yaml").write_text(PIPELINE)
        (folder / "number.json").write_text(json.dumps(SCHEMA))
        admin = AdminClient({"bootstrap.servers": servers})
        sizes = {topic: 1 if topic.endswith("letters") else PARTITIONS for topic in TOPICS}
        made = admin.create_topics([NewTopic(topic, count, replicas) for topic, count in sizes.items()])
        for future in made.values():
            future.result(30)
        self._drivers = Drivers("pipeline_driver.py", folder)

    def produce(self, count: int) -> None:
        producer = Producer({"bootstrap.servers": self.servers, "enable.idempotence": True})
        for number in range(self.produced, self.produced + count):
            key, value = source_record(number)
            producer.produce("numbers", key=key, value=value)
            producer.poll(0)
        assert producer.flush(60) == 0
        self.produced += count

    def start(self, *arguments: str, state: Path | None = None) -> subprocess.Popen[str]:
        """A run of the pipeline, in a process group of its own; it waits for input only where it is told to."""
        given = (str(self.folder / "killed.yaml"), self.servers, str(state or self.state), *arguments)
        return self._drivers.start(*given, stdin=subprocess.PIPE)

    def run(self, *arguments: str) -> tuple[int, str, str]:
        """Exit code and output of a run."""
        return ended(self.start(*arguments))

    def close(self) -> None:
        self._drivers.close()

    # -- the verdict -------------------------------------------------------------------------------------------------

    def faults(self) -> list[str]:
        """What is wrong with the outputs, now that everything has been read; empty when nothing is."""
        good = [number for number in range(self.produced) if is_good(number)]
        source = {(m.partition(), m.offset()): m.value() for m in committed_records(self.servers, "numbers")}
        found = []
        for topic in ("middle", "left", "right", "last"):
            records = committed_records(self.servers, topic)
            numbers = [number_of(message.value()) for message in records]
            found += differences(topic, numbers, good)
            by_key: dict[bytes, list[int]] = defaultdict(list)
            for message, number in zip(records, numbers, strict=True):
                by_key[message.key()].append(number)
                if message.key() != f"k{number % KEYS}".encode():
                    found.append(f"{topic}: {number} has the key {message.key()!r}")
            found += [
                f"{topic}: the order of {key!r} is not the source's"
                for key, all_ in by_key.items()
                if sorted(all_) != all_
            ]
        bad = [value for value in source.values() if not is_good(number_of(value))]
        letters = [message.value() for message in committed_records(self.servers, "numbers.dead_letters")]
        found += differences("dead letters", letters, bad)
        for table in ("first", "third"):
            rows = delta_rows(self.folder / "lake" / table)
            found += differences(f"table {table}", [row["n"] for row in rows], good)
        origins = Counter((row["_partition"], row["_offset"]) for row in delta_rows(self.folder / "lake" / "first"))
        if set(origins.values()) - {1}:
            found.append("table first: rows of one source record stand twice")
        return found


def number_of(value: bytes) -> int:
    """The number that a value of any of the topics is about."""
    if value.startswith(b"{") and not value.startswith(b'{"'):
        return int(value[1:])
    number = json.loads(value)["n"] if value.startswith(b"{") else int(value)
    return int(number) if number >= 0 else -int(number) - 1


def differences(where: str, found: Iterable[Any], expected: Iterable[Any]) -> list[str]:
    """How two multisets differ, in a line each.

    >>> differences("t", [1, 1, 3], [1, 2])
    ['t: lost: [2]', 't: doubled or foreign: [1, 3]']
    """
    have, want = Counter(found), Counter(expected)
    said = []
    if want - have:
        said.append(f"{where}: lost: {sorted((want - have).elements())[:10]}")
    if have - want:
        said.append(f"{where}: doubled or foreign: {sorted((have - want).elements())[:10]}")
    return said
