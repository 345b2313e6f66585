from __future__ import annotations

import struct

import pytest

from headwater.logtier.client.errors import InvalidResponseError
from headwater.logtier.client.fetcher import offset_after
from headwater.logtier.records.batch import LAST_OFFSET_DELTA, Record, build_batch

BATCH = build_batch([Record(b"a", b"1", 5), Record(b"b", b"2", 6)], base_offset=10)


def test_the_next_offset_follows_the_last_whole_batch() -> None:
    records = BATCH + build_batch([Record(None, b"3", 7)], base_offset=12)
    for end in range(len(BATCH), len(records)):
        assert offset_after(memoryview(records)[:end], 10) == 12
    assert offset_after(memoryview(records), 10) == 13
    assert offset_after(memoryview(records)[: len(BATCH) - 1], 10) == 10


def test_a_compacted_batch_counts_by_its_last_offset_delta() -> None:
    compacted = bytearray(BATCH)
    compacted[LAST_OFFSET_DELTA : LAST_OFFSET_DELTA + 4] = struct.pack(">i", 99)
    assert offset_after(memoryview(compacted), 10) == 110


def test_a_batch_before_the_offset_asked_for_does_not_lead_back() -> None:
    assert offset_after(memoryview(BATCH), 50) == 50


@pytest.mark.parametrize("length", [-1, 0, 48])
def test_a_hostile_batch_length_is_refused(length: int) -> None:
    hostile = bytearray(BATCH)
    hostile[8:12] = struct.pack(">i", length)
    with pytest.raises(InvalidResponseError, match="record batch of length"):
        offset_after(memoryview(hostile), 10)


def test_an_old_message_format_is_named() -> None:
    old = bytearray(BATCH)
    old[16] = 1
    with pytest.raises(InvalidResponseError, match="format 1"):
        offset_after(memoryview(old), 10)
