"""The hand-written reader against kio's writer."""

import contextlib
import struct
from datetime import timedelta
from io import BytesIO
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.index import load_request_schema
from kio.serial import entity_writer
from kio.static.primitive import i32Timedelta

from headwater.logtier.protocol import messages
from headwater.logtier.protocol.errors import ProtocolViolationError

VERSIONS = range(3, 14)
NAMES = st.text(st.characters(codec="utf-8"), max_size=20)
PARTITIONS = st.lists(st.tuples(st.integers(0, 2**31 - 1), st.none() | st.binary(max_size=300)), max_size=4)
TOPICS = st.lists(st.tuples(NAMES, st.uuids(), PARTITIONS), max_size=3)


def header(version: int) -> bytes:
    return struct.pack(">hhih", 0, version, 7, 1) + b"c" + (b"\x00" if version >= 9 else b"")


def frame_of(version: int, transactional_id: str | None, acks: int, timeout_ms: int, topics: list[Any]) -> bytes:
    schema: Any = load_request_schema(0, version)
    module = __import__(schema.__module__, fromlist=["TopicProduceData", "PartitionProduceData"])
    names = [{"topic_id": topic_id} if version >= 13 else {"name": name} for name, topic_id, _ in topics]
    entity = schema(
        transactional_id=transactional_id,
        acks=acks,
        timeout=i32Timedelta.parse(timedelta(milliseconds=timeout_ms)),
        topic_data=tuple(
            module.TopicProduceData(
                **name,
                partition_data=tuple(module.PartitionProduceData(index=i, records=r) for i, r in partitions),
            )
            for name, (_, _, partitions) in zip(names, topics, strict=True)
        ),
    )
    buffer = BytesIO()
    entity_writer(schema)(buffer, entity)
    return header(version) + buffer.getvalue()


def read(frame: bytes) -> Any:
    return messages.read_request(messages.read_request_header(frame), memoryview(frame))


@given(st.sampled_from(VERSIONS), st.none() | NAMES, st.sampled_from([-1, 0, 1]), st.integers(0, 2**31 - 1), TOPICS)
def test_what_the_library_writes_is_read_the_same_in_every_version(
    version: int, transactional_id: str | None, acks: int, timeout_ms: int, topics: list[Any]
) -> None:
    request = read(frame_of(version, transactional_id, acks, timeout_ms, topics))
    assert (request.transactional_id, request.acks, request.timeout_ms) == (transactional_id, acks, timeout_ms)
    by_id = version >= 13
    found = [
        (t.topic_id if by_id else t.name, [(p.index, p.records if p.records is None else bytes(p.records)) for p in ps])
        for t in request.topic_data
        for ps in [t.partition_data]
    ]
    # kio writes the zero id for none, and reads it as none.
    zero = UUID(int=0)
    wanted = [((topic_id or zero) if by_id else name, partitions) for name, topic_id, partitions in topics]
    assert found == wanted


@pytest.mark.parametrize("version", VERSIONS)
def test_a_request_cut_anywhere_is_refused(version: int) -> None:
    whole = frame_of(version, "t", 1, 1000, [("flights", UUID(int=5), [(0, b"abc"), (1, None)])])
    start = messages.read_request_header(whole).body_offset
    for size in range(start, len(whole)):
        with pytest.raises(ProtocolViolationError):
            read(whole[:size])


@pytest.mark.parametrize("version", [3, 9])
def test_hostile_counts_and_lengths_are_refused_before_anything_is_made_of_them(version: int) -> None:
    whole = bytearray(frame_of(version, None, 1, 1000, [("flights", UUID(int=5), [(0, b"abc")])]))
    start = messages.read_request_header(bytes(whole)).body_offset
    for position in range(start, len(whole)):
        for value in (0x7F, 0x80, 0xFF):
            mutant = bytearray(whole)
            mutant[position] = value
            # Some mutants are requests still; nothing but this error may come of the others.
            with contextlib.suppress(ProtocolViolationError):
                read(bytes(mutant))


def test_records_are_views_into_the_frame() -> None:
    frame = frame_of(9, None, 1, 1000, [("flights", UUID(int=5), [(0, b"abc")])])
    records = read(frame).topic_data[0].partition_data[0].records
    assert records.obj is frame


def test_tagged_fields_of_a_version_to_come_are_passed_over() -> None:
    plain = frame_of(9, None, 1, 1000, [("flights", UUID(int=5), [(0, b"abc")])])
    tagged = plain[:-1] + b"\x01\x63\x02xy"
    assert read(tagged).topic_data[0].name == "flights"
