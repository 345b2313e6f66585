"""The status of an archive as a record, and what a driver makes of its rounds."""

from __future__ import annotations

import json

import pytest

from headwater.pipelines.archive.metrics import TopicCounts
from headwater.pipelines.archive.status_record import ArchiverStatus, decode_archiver_status

STATUS = ArchiverStatus(
    "flights", "/lake/flights", "failing", 5, 9, 1, "worker-3", 4711, 7, 30, 4, 3, error="no broker"
)


def test_a_status_is_read_as_it_was_written_and_later_fields_are_ignored() -> None:
    assert decode_archiver_status(STATUS.encode()) == STATUS
    later = json.loads(STATUS.encode()) | {"later": 1}
    assert decode_archiver_status(json.dumps(later).encode()) == STATUS


def test_text_that_is_no_unicode_ends_no_writer() -> None:
    status = ArchiverStatus("flights", "/lake/flights", "failing", 5, 9, 1, "worker-3", 4711, error="a\udc80b")
    assert decode_archiver_status(status.encode()).error == "a?b"


@pytest.mark.parametrize(
    "change", [{"version": 2}, {"kind": "stage"}, {"state": "asleep"}, {"topic": None, "extra": {}, "host": ...}]
)
def test_other_records_are_no_status_of_an_archive(change: dict[str, object]) -> None:
    value = json.loads(STATUS.encode()) | change
    value = {name: each for name, each in value.items() if each is not ...}
    with pytest.raises(ValueError, match="not a"):
        decode_archiver_status(json.dumps(value).encode())


def test_a_state_begins_with_its_first_round_and_ends_with_the_first_of_the_other() -> None:
    counts = TopicCounts("flights")
    assert not counts.is_own
    for now_s in (1.0, 2.0):
        counts.ended_well(now_s)
    assert (counts.is_failing, counts.since_s, counts.is_own) == (False, 1.0, True)
    for now_s in (3.0, 4.0):
        counts.failed("no broker", now_s, is_own=True)
    assert (counts.is_failing, counts.since_s, counts.error, counts.failures) == (True, 3.0, "no broker", 2)
    counts.ended_well(5.0)
    assert (counts.is_failing, counts.since_s, counts.error) == (False, 5.0, "")
    counts.failed("held by another", 6.0, is_own=False)
    assert not counts.is_own, "its driver writes its status"
