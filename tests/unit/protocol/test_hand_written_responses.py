"""The hand-written responses against kio's reader, at every version."""

from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import pytest
from kio.index import load_response_schema
from kio.serial import entity_reader

from headwater.logtier.handlers.records import (
    fetch,
    produce,
)
from headwater.logtier.protocol.errors import ErrorCode
from headwater.logtier.protocol.fetch_response import COPIED_RECORDS_BYTES_MAX, FetchedPartition, encode_fetch_response
from headwater.logtier.protocol.produce_response import ProducedPartition, encode_produce_response
from headwater.logtier.runtime.network import FileSlice

TOPIC_ID = UUID("8a1f6a0e-2c1b-4d7e-9f10-aabbccddeeff")


@dataclass
class MemoryFile:
    data: bytes
    path = "memory"

    @property
    def size(self) -> int:
        return len(self.data)

    def fileno(self) -> int:
        return 99

    def pread(self, size: int, position: int) -> bytes:
        return self.data[position : position + size]


@dataclass
class MemorySlice:
    file: MemoryFile
    position: int
    size: int
    extra: list[int] = field(default_factory=list)


def joined(parts: list[object]) -> bytes:
    data = b""
    for part in parts:
        if isinstance(part, FileSlice):
            assert part.fileno == 99
            owner = part.owner
            assert isinstance(owner, MemorySlice)
            data += owner.file.pread(part.size, part.position)
        else:
            data += bytes(part)  # type: ignore[call-overload]
    return data


def parse(api_key: int, version: int, frame: bytes) -> object:
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    assert int.from_bytes(frame[4:8], "big") == 77
    schema = load_response_schema(api_key, version)
    offset = 8 + (1 if schema.__flexible__ else 0)
    entity, size = entity_reader(schema)(frame, offset)
    assert offset + size == len(frame)
    return entity


@pytest.mark.parametrize("version", range(produce.VERSIONS[0], produce.VERSIONS[1] + 1))
def test_produce_response_is_what_kio_reads(version: int) -> None:
    partitions = [
        ProducedPartition(0, ErrorCode.none, 42, 1_700_000_000_000, 7),
        ProducedPartition(200, ErrorCode.corrupt_message, message="the CRC does not match"),
    ]
    frame = encode_produce_response(version, 77, [("flights", TOPIC_ID, partitions), ("empty", None, [])])
    response = parse(0, version, frame)
    first, empty = response.responses  # type: ignore[attr-defined]
    assert empty.partition_responses == ()
    if version >= 13:
        assert first.topic_id == TOPIC_ID
    else:
        assert first.name == "flights"
    good, bad = first.partition_responses
    assert (good.index, good.error_code, good.base_offset) == (0, ErrorCode.none, 42)
    assert good.log_append_time.timestamp() == 1_700_000_000
    assert (bad.index, bad.error_code, bad.base_offset) == (200, ErrorCode.corrupt_message, -1)
    assert bad.log_append_time is None
    if version >= 5:
        assert (good.log_start_offset, bad.log_start_offset) == (7, -1)
    if version >= 8:
        assert (good.error_message, bad.error_message) == (None, "the CRC does not match")


@pytest.mark.parametrize("version", range(fetch.VERSIONS[0], fetch.VERSIONS[1] + 1))
@pytest.mark.parametrize("size", [0, 100, COPIED_RECORDS_BYTES_MAX + 1])
def test_fetch_response_is_what_kio_reads(version: int, size: int) -> None:
    data = bytes(range(256)) * 300
    records = MemorySlice(MemoryFile(data), 11, size)
    partitions = [
        FetchedPartition(3, ErrorCode.none, 50, 49, 5, records),
        FetchedPartition(4, ErrorCode.offset_out_of_range, log_start_offset=9),
        FetchedPartition(5, ErrorCode.none, 1, 1, 0, None),
    ]
    parts = encode_fetch_response(version, 77, [("flights", TOPIC_ID, partitions), ("none", None, [])])
    assert sum(isinstance(part, FileSlice) for part in parts) == (size > COPIED_RECORDS_BYTES_MAX)
    response = parse(1, version, joined(list(parts)))
    first, none = response.responses  # type: ignore[attr-defined]
    assert none.partitions == ()
    if version >= 13:
        assert first.topic_id == TOPIC_ID
    else:
        assert first.topic == "flights"
    good, bad, nothing = first.partitions
    assert (good.partition_index, good.error_code, good.high_watermark) == (3, ErrorCode.none, 50)
    assert good.last_stable_offset == 49
    assert good.records == data[11 : 11 + size]
    assert not good.aborted_transactions
    assert (bad.partition_index, bad.error_code, bad.records) == (4, ErrorCode.offset_out_of_range, b"")
    assert (nothing.partition_index, nothing.records) == (5, b"")
    if version >= 5:
        assert (good.log_start_offset, bad.log_start_offset) == (5, 9)


@pytest.mark.parametrize("version", range(7, 19))
def test_fetch_response_carries_an_error_of_the_whole_request(version: int) -> None:
    parts = encode_fetch_response(version, 77, (), ErrorCode.fetch_session_id_not_found)
    response = parse(1, version, joined(list(parts)))
    assert response.error_code is ErrorCode.fetch_session_id_not_found  # type: ignore[attr-defined]
    assert response.session_id == 0  # type: ignore[attr-defined]


@pytest.mark.parametrize("version", range(fetch.VERSIONS[0], fetch.VERSIONS[1] + 1))
def test_records_that_the_file_no_longer_has_are_an_error_of_their_partition_alone(version: int) -> None:
    whole, cut = MemorySlice(MemoryFile(b"x" * 10), 0, 10), MemorySlice(MemoryFile(b"x" * 4), 0, 10)
    partitions = [
        FetchedPartition(0, ErrorCode.none, 10, 10, 0, cut),
        FetchedPartition(1, ErrorCode.none, 10, 10, 0, whole),
    ]
    frame = joined(list(encode_fetch_response(version, 77, [("t", TOPIC_ID, partitions)])))
    response: Any = parse(1, version, frame)
    first, second = response.responses[0].partitions
    assert (first.error_code, first.records or b"") == (ErrorCode.kafka_storage_error, b"")
    assert (second.error_code, second.records) == (ErrorCode.none, b"x" * 10)
