"""Batches that no sound producer makes: the code that Apache Kafka 4.1.1 answers, and what is known to differ.

HEADWATER_TEST_BOOTSTRAP names an Apache Kafka for who wants to see them again; what differs does not count there.
"""

from __future__ import annotations

import os
import struct
import time
import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from crc32c import crc32c

from headwater.logtier.client.cluster import ClientConfig, ClusterClient, parse_bootstrap_servers
from headwater.logtier.client.produce_codec import produce_request
from headwater.logtier.records.batch import ATTRIBUTES, CRC, Record, build_batch

if TYPE_CHECKING:
    from headwater.logtier.client.blocking import BlockingConnection

pytestmark = pytest.mark.slow

NOW_MS = int(time.time() * 1000)
FAR_MS = 10**12
BATCH = build_batch([Record(b"k", b"v", NOW_MS)] * 3)
UNKNOWN, NONE, CORRUPT, UNKNOWN_TOPIC, TIMESTAMP, TRANSACTION, CODEC, INVALID = -1, 0, 2, 3, 32, 53, 76, 87


def changed(*fields: tuple[int, str, int]) -> bytes:
    """The batch with other fields, as (position, format, value), and the checksum of these."""
    batch = bytearray(BATCH)
    for position, form, value in fields:
        struct.pack_into(form, batch, position, value)
    batch[CRC:ATTRIBUTES] = crc32c(bytes(batch[ATTRIBUTES:])).to_bytes(4, "big")
    return bytes(batch)


def attributes(value: int) -> bytes:
    return changed((ATTRIBUTES, ">h", value))


class Case(NamedTuple):
    """`ours` is said where it is known to differ: docs/not_implemented.md tells why."""

    records: bytes
    kafka: int
    ours: int | None = None
    version: int = 7


CASES = {
    "sound": Case(BATCH, NONE),
    "no batch": Case(b"", INVALID),
    "two batches": Case(BATCH + BATCH, INVALID),
    "a batch and a part of one": Case(BATCH + BATCH[:40], NONE, INVALID),
    "a part of a batch": Case(BATCH[:-3], INVALID),
    "a wrong checksum": Case(BATCH[:-1] + b"\xff", CORRUPT),
    "format 1": Case(BATCH[:16] + b"\1" + BATCH[17:], INVALID),
    "format 3": Case(BATCH[:16] + b"\3" + BATCH[17:], CORRUPT),
    "a codec that does not exist": Case(attributes(5), UNKNOWN, INVALID),
    "zstd before its time": Case(attributes(4), CODEC, version=3),
    "what gzip does not understand": Case(attributes(1), UNKNOWN, NONE),
    "control records": Case(attributes(0x20), INVALID),
    "a transaction of nobody": Case(attributes(0x10), TRANSACTION),
    "a delete horizon": Case(attributes(0x40), NONE),
    "an attribute without a meaning": Case(attributes(0x80), NONE),
    "a time that only the broker gives": Case(attributes(0x08), NONE, TIMESTAMP),
    "more records than the last offset says": Case(changed((57, ">i", 5)), INVALID),
    "more records than there are": Case(changed((57, ">i", 5), (23, ">i", 4)), INVALID, NONE),
    "no records": Case(changed((57, ">i", 0)), INVALID),
    "a last offset behind the records": Case(changed((23, ">i", 9)), INVALID),
    "a first offset": Case(changed((0, ">q", 9)), INVALID),
    "records from the future": Case(changed((27, ">q", NOW_MS + FAR_MS)), TIMESTAMP),
    "a greatest time in the future": Case(changed((35, ">q", NOW_MS + FAR_MS)), NONE, TIMESTAMP),
    "a greatest time in the past": Case(changed((35, ">q", 1)), NONE),
    "an epoch without a producer": Case(changed((51, ">h", 3)), NONE),
}


class Target:
    """A topic, and a connection to its leader."""

    def __init__(self, connection: BlockingConnection, topic: str) -> None:
        self._connection = connection
        self._topic = topic

    def answer(self, case: Case, topic: str | None = None) -> int:
        batches = {self._topic if topic is None else topic: [(0, case.records)]}
        [answer] = self._connection.call(produce_request(case.version, batches, timeout_ms=10_000))
        return answer.error_code


@pytest.fixture(scope="module")
def target(bootstrap_servers: str) -> Iterator[Target]:
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    topic = f"unsound-{uuid.uuid4().hex[:8]}"
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(30)
    with ClusterClient(ClientConfig(parse_bootstrap_servers(bootstrap_servers))) as cluster:
        target = Target(cluster.connection(cluster.leader(topic, 0)), topic)
        deadline_s = time.monotonic() + 30
        while target.answer(CASES["sound"]) != NONE:  # Kafka makes its log after it has told of the topic
            assert time.monotonic() < deadline_s
            time.sleep(0.05)
        yield target
    admin.delete_topics([topic])[topic].result(30)


@pytest.mark.parametrize("name", CASES)
def test_the_answer(target: Target, name: str) -> None:
    case = CASES[name]
    is_other_broker = "HEADWATER_TEST_BOOTSTRAP" in os.environ
    assert target.answer(case) == (case.kafka if is_other_broker or case.ours is None else case.ours)


@pytest.mark.parametrize("version", [3, 9, 12])
def test_a_topic_without_a_name_is_unknown(target: Target, version: int) -> None:
    assert target.answer(Case(BATCH, NONE, version=version), topic="") == UNKNOWN_TOPIC
