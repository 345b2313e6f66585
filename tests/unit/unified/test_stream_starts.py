"""Where a stream of an archived topic may begin."""

from __future__ import annotations

from typing import Any

import pytest

from headwater.api.topic_model import PartitionOffsets
from headwater.cli.sql.follow import parse_from, start_of, with_history
from headwater.pipelines.archive.archive_file import TopicArchiveSpec
from headwater.pipelines.archive.errors import ArchiveError
from headwater.pipelines.definition import TopicSource
from headwater.pipelines.loads.offsets.planning import LogState
from headwater.pipelines.loads.offsets.positions import parse_position
from headwater.pipelines.seam.marks import APPEND, UPSERT
from headwater.pipelines.seam.table_offsets import TableOffsets
from headwater.pipelines.unified.unified_stream import check_start

SPEC = TopicArchiveSpec("flights", "/lake/flights", parse_position("earliest"))
LOG = LogState("flights", "t", first={0: 30, 1: 0}, end={0: 99, 1: 7})


def table(mode: str, topic_id: str = "t") -> TableOffsets:
    return TableOffsets(12, "flights", topic_id, 0, {0: 40, 1: 7}, mode)


def source(start: Any) -> TopicSource:
    return TopicSource.model_validate({"topic": "flights", "starting_offsets": start})


@pytest.mark.parametrize("start", ["earliest", "latest", {0: 30, 1: 0}, {0: -2, 1: -1}])
def test_a_table_by_key_begins_at_the_log(start: Any) -> None:
    check_start(SPEC, table(UPSERT), LOG, source(start))


def test_an_offset_before_the_log_is_refused_for_a_table_by_key_alone() -> None:
    early = source({0: 29, 1: 0})
    why = (
        "the table /lake/flights keeps the last record of each key: its history has no offsets, and a stream begins at "
        "the log's start, which is offset 30 in flights-0; the start is 29"
    )
    with pytest.raises(ArchiveError, match=why):
        check_start(SPEC, table(UPSERT), LOG, early)
    check_start(SPEC, table(APPEND), LOG, early)
    check_start(SPEC, None, LOG, early)


def test_a_table_of_another_topic_is_refused() -> None:
    with pytest.raises(ArchiveError, match="id u"):
        check_start(SPEC, table(APPEND, "u"), LOG, source("earliest"))


@pytest.mark.parametrize(("position", "offsets"), [("-70", {0: 29, 1: 0}), ("5", {0: 5, 1: 5}), ("-200", {0: 4, 1: 0})])
def test_positions_count_from_the_history(position: str, offsets: dict[int, int]) -> None:
    listed = with_history(
        lambda _topic: [PartitionOffsets(0, 30, 99), PartitionOffsets(1, 0, 7)],
        lambda topic: {0: 4} if topic == "flights" else None,
    )
    assert start_of(parse_from(position), listed)("flights").starting_offsets == offsets
    assert start_of(parse_from("5"), listed)("others").starting_offsets == {0: 30, 1: 5}
