"""kill -9 of the broker's whole process group during idempotent produces, again and again.

Nothing acknowledged may be lost, nothing doubled, and each key keeps its order. KILL_ROUNDS and KILL_SEED set how often
and when; the seed is printed, so that a failing run can be repeated.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

if TYPE_CHECKING:
    from tests.conftest import StartBroker

TOPIC = "numbers"
PARTITIONS = 3
ROUNDS = int(os.environ.get("KILL_ROUNDS") or 4)
SEED = int(os.environ.get("KILL_SEED") or random.SystemRandom().randrange(2**32))
END_S = 180
# Small segments, so that kills fall on rolls and recovery meets several of them.
PROPERTIES = {"log.segment.bytes": "262144", "log.index.interval.bytes": "1024"}


class Stored(NamedTuple):
    """One record as it lies in the log."""

    number: int
    partition: int
    offset: int


class Acknowledged(NamedTuple):
    """One record as its producer was told it lies there."""

    key: str
    number: int
    partition: int
    offset: int


# librdkafka does not know the offset of a batch whose first answer was lost.
UNKNOWN_OFFSETS = (-1, -1001)


def faults(stored: dict[str, list[Stored]], acknowledged: list[Acknowledged]) -> list[str]:
    """What is wrong with a log in which every key was sent the numbers from 0 on, in order; empty when nothing is."""
    found = []
    for key, rows in stored.items():
        numbers = [row.number for row in rows]
        if numbers != list(range(len(numbers))):
            at = next(i for i, number in enumerate(numbers) if number != i)
            found.append(f"key {key}: lost, doubled or out of order: {numbers[max(0, at - 3) : at + 5]} at {at}")
    if found:
        return found
    for record in acknowledged:
        rows = stored.get(record.key, [])
        if record.number >= len(rows):
            found.append(f"lost: {record}")
        elif (row := rows[record.number]).partition != record.partition or record.offset not in {
            row.offset,
            *UNKNOWN_OFFSETS,
        }:
            found.append(f"{record} lies elsewhere: {row}")
    return found


def log_of(*numbers: int) -> dict[str, list[Stored]]:
    return {"k": [Stored(number, 0, offset) for offset, number in enumerate(numbers)]}


def test_the_checker_passes_a_good_log() -> None:
    acknowledged = [Acknowledged("k", 0, 0, 0), Acknowledged("k", 2, 0, 2), Acknowledged("k", 1, 0, -1001)]
    assert faults(log_of(0, 1, 2, 3), acknowledged) == []


@pytest.mark.parametrize(
    ("numbers", "record"),
    [
        ((0, 1), Acknowledged("k", 2, 0, 2)),
        ((0, 1, 1, 2), Acknowledged("k", 0, 0, 0)),
        ((0, 2, 1), Acknowledged("k", 0, 0, 0)),
        ((0, 2), Acknowledged("k", 0, 0, 0)),
        ((0, 1), Acknowledged("k", 1, 1, 1)),
        ((0, 1), Acknowledged("k", 1, 0, 7)),
        ((0, 1), Acknowledged("other", 0, 0, 0)),
    ],
    ids=["lost at the end", "doubled", "order", "gap", "another partition", "another offset", "a whole key lost"],
)
def test_the_checker_sees_a_bad_log(numbers: tuple[int, ...], record: Acknowledged) -> None:
    assert len(faults(log_of(*numbers), [record])) == 1


class ProducerProcess:
    """One `idempotent_producer.py`, ended by closing its standard input."""

    def __init__(self, bootstrap: str, name: str, folder: Path) -> None:
        self.journal = folder / f"{name}.journal"
        script = Path(__file__).with_name("idempotent_producer.py")
        self.process = subprocess.Popen(
            [sys.executable, str(script), bootstrap, TOPIC, name, str(self.journal)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def acknowledged(self) -> list[Acknowledged]:
        """Its journal."""
        rows = [line.split() for line in self.journal.read_text().splitlines()]
        return [Acknowledged(key, *map(int, numbers)) for key, *numbers in rows]

    def has_acknowledged(self) -> bool:
        """Whether its journal has a record."""
        return self.journal.exists() and self.journal.stat().st_size > 0

    def finish(self) -> tuple[int, int]:
        """(sent, acknowledged) once every record has its answer."""
        out, err = self.process.communicate(timeout=END_S)
        assert self.process.returncode == 0, f"a producer gave up: {out}{err}"
        words = out.split()
        return int(words[1]), int(words[3])

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()


@pytest.fixture
def producers() -> Iterator[list[ProducerProcess]]:
    started: list[ProducerProcess] = []
    yield started
    for producer in started:
        producer.close()


def read_all(bootstrap: str) -> dict[str, list[Stored]]:
    """Every record by key, in order of offset."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "checker", "enable.auto.commit": False})
    partitions = [TopicPartition(TOPIC, p, OFFSET_BEGINNING) for p in range(PARTITIONS)]
    ends = {p.partition: consumer.get_watermark_offsets(p, 30)[1] for p in partitions}
    consumer.assign(partitions)
    positions = dict.fromkeys(ends, 0)
    rows: dict[str, list[Stored]] = defaultdict(list)
    while positions != ends:
        # It waits for as many as it is asked for.
        left = sum(ends.values()) - sum(positions.values())
        messages = consumer.consume(min(10_000, left), 30)
        assert messages, f"nothing came for 30 s at {positions} of {ends}"
        for message in messages:
            error, key, value = message.error(), message.key(), message.value()
            partition, offset = message.partition(), message.offset()
            assert error is None, error
            assert key is not None
            assert value is not None
            assert partition is not None
            assert offset == positions[partition], "offsets without gaps"
            positions[partition] += 1
            rows[key.decode()].append(Stored(int(value), partition, offset))
    consumer.close()
    return rows


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_kill_9_during_idempotent_produce_loses_and_doubles_nothing(
    start_broker: StartBroker, producers: list[ProducerProcess], tmp_path: Path
) -> None:
    print(f"\nKILL_SEED={SEED} KILL_ROUNDS={ROUNDS}")
    rng = random.Random(SEED)
    data = tmp_path / "data"
    broker = start_broker(data, properties=PROPERTIES)
    address, port = broker.address, broker.port
    admin = AdminClient({"bootstrap.servers": address, "log_level": 0})
    admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result(30)
    del admin
    producers.append(ProducerProcess(address, "first", tmp_path))
    for round_number in range(ROUNDS):
        time.sleep(rng.uniform(0.3, 2.0))
        broker.kill()
        if rng.random() < 0.3:
            # A kill in the middle of recovery.
            broker = start_broker(data, port, PROPERTIES, await_ready=False)
            time.sleep(rng.uniform(0.1, 0.8))
            broker.kill()
        broker = start_broker(data, port, PROPERTIES)
        if round_number in {0, ROUNDS // 2}:
            # A producer that comes later must never be given a producer id that is in use.
            producers.append(ProducerProcess(address, f"after-{round_number}", tmp_path))
    deadline_s = time.monotonic() + END_S
    while not all(producer.has_acknowledged() for producer in producers) and time.monotonic() < deadline_s:
        time.sleep(0.1)
    time.sleep(1)  # some more, undisturbed
    counts = [producer.finish() for producer in producers]
    stored = read_all(address)
    broker.stop()

    print(f"sent and acknowledged: {counts}; stored {sum(map(len, stored.values()))} records")
    assert all(sent == acknowledged and sent > 0 for sent, acknowledged in counts)
    assert faults(stored, [record for producer in producers for record in producer.acknowledged()]) == []
    assert sum(map(len, stored.values())) == sum(sent for sent, _ in counts)
