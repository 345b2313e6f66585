"""The cleaner's small parts: its hash, its throttle, its messages, what a compacted topic takes."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from headwater.logtier.config import TopicConfig
from headwater.logtier.log.appending.batch_validation import check_produced_batch
from headwater.logtier.log.appending.record_frames import check_keyed_records
from headwater.logtier.log.cleaning import cleaner_kernels as kernels
from headwater.logtier.log.cleaning.cleaner_job import CleanerFailure, CleanerResult, report_from_line, report_to_line
from headwater.logtier.log.cleaning.cleaner_worker import IoThrottle
from headwater.logtier.protocol.errors import ErrorCode, KafkaError
from headwater.logtier.records.batch import CRC, HEADER, HEADER_BYTES, Record, RecordBatchHeader, build_batch


@pytest.mark.parametrize(
    ("size", "expected"),
    [(0, "a3817f04ba25a8e66df67214c7550293"), (1, "da87c1d86b99af44347659119b22fc45")],
)
def test_keys_are_hashed_by_siphash_of_128_bits(size: int, expected: str) -> None:
    seed = np.frombuffer(bytes(range(16)), np.uint64)
    data = np.frombuffer(bytes(range(size)) + b"behind", np.uint8)
    assert struct.pack("<QQ", *map(int, kernels.siphash(data, 0, size, seed))).hex() == expected


def test_keys_that_differ_in_their_last_byte_or_length_differ() -> None:
    seed = np.frombuffer(bytes(16), np.uint64)
    data = np.zeros(40, np.uint8)
    assert len({kernels.siphash(data, 0, size, seed) for size in range(40)}) == 40


class Time:
    def __init__(self) -> None:
        self.now_s = 100.0

    def now(self) -> float:
        return self.now_s

    def pause(self, seconds: float) -> None:
        self.now_s += seconds


def test_the_throttle_keeps_the_average() -> None:
    time = Time()
    throttle = IoThrottle(1_000, now_s=time.now, pause=time.pause)
    for _ in range(100):
        throttle(100)
    assert time.now_s == pytest.approx(110.0, abs=0.2)
    time.now_s += 60  # an idle minute gives no right to a burst of one
    for _ in range(100):
        throttle(100)
    assert time.now_s == pytest.approx(180.0, abs=0.3)


def test_reports_survive_the_pipe() -> None:
    for report in (CleanerResult(1, 2, 3, 4, 5, 0.5), CleanerFailure("a\nb", is_damage=True)):
        assert report_from_line(report_to_line(report)) == report
        assert report_to_line(report).count(b"\n") == 1


@pytest.mark.parametrize("codec", range(5))
@pytest.mark.parametrize("policy", [("compact",), ("compact", "delete")])
def test_a_record_without_a_key_is_refused_by_a_compacted_topic(codec: int, policy: tuple[str, ...]) -> None:
    batch = memoryview(build_batch([Record(b"k", None, 1), Record(None, b"v", 1)], codec=codec))
    fields = HEADER.unpack_from(batch)
    check_produced_batch(batch, fields, TopicConfig(), 1)
    with pytest.raises(KafkaError) as caught:
        check_produced_batch(batch, fields, TopicConfig(cleanup_policy=policy), 1)
    assert caught.value.code is ErrorCode.invalid_record
    assert "record 1 of a batch has no key" in caught.value.message


def test_records_with_keys_are_taken_by_a_compacted_topic() -> None:
    records = [Record(b"", b"", -1), Record(b"k" * 300, None, 2**50, (("h", None),)), Record(b"x", b"v" * 20_000, 5)]
    for codec in range(5):
        check_keyed_records(build_batch(records, codec=codec))


def test_what_the_cleaner_could_not_read_is_not_taken() -> None:
    whole = build_batch([Record(b"key", b"value", 1), Record(b"key", b"value", 2)])
    header = RecordBatchHeader.parse(whole)
    for position in range(HEADER_BYTES, len(whole)):
        for byte in (0x00, 0x7F, 0x80, 0xFF):
            changed = bytearray(whole)
            changed[position] = byte
            try:
                check_keyed_records(bytes(changed))
            except KafkaError as error:
                assert error.code in (ErrorCode.corrupt_message, ErrorCode.invalid_record)
    with pytest.raises(KafkaError) as caught:
        check_keyed_records(whole[: HEADER_BYTES + 3])
    assert caught.value.code is ErrorCode.corrupt_message
    assert header.crc == int.from_bytes(whole[CRC : CRC + 4], "big")
