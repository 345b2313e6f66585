"""When a table was vacuumed is noted beside it, so that drivers that often begin come to it."""

from __future__ import annotations

from pathlib import Path

import pytest

from headwater.pipelines.archive.maintenance import VACUUM_S, VACUUMED, vacuumed_s
from headwater.pipelines.file_systems.local import LocalFiles

NOW_S = 1_700_000_000.0


def test_first_vacuums_are_spread_over_a_day_and_begin_anew_with_no_driver(tmp_path: Path) -> None:
    tables = {f"topic{number}": str(tmp_path / str(number)) for number in range(100)}
    found = {topic: vacuumed_s(LocalFiles(), table, topic, NOW_S) for topic, table in tables.items()}
    assert all(NOW_S - VACUUM_S <= each <= NOW_S for each in found.values())
    hours = [int((NOW_S - each) // 3_600) for each in found.values()]
    assert all(hours.count(hour) <= 15 for hour in range(24)), sorted(hours)
    for topic, table in tables.items():
        assert vacuumed_s(LocalFiles(), table, topic, NOW_S + 5_000) == pytest.approx(found[topic], abs=1)


@pytest.mark.parametrize(("noted", "found_s"), [(b"1699999000", 1_699_999_000.0), (b"1800000000", NOW_S)])
def test_what_was_noted_is_read_and_a_time_to_come_is_now(tmp_path: Path, noted: bytes, found_s: float) -> None:
    LocalFiles().replace(str(tmp_path / VACUUMED), noted)
    assert vacuumed_s(LocalFiles(), str(tmp_path), "flights", NOW_S) == found_s


@pytest.mark.parametrize("noted", [b"", b"yesterday", b"\xff", b"nan"])
def test_a_note_that_is_no_time_is_written_anew(tmp_path: Path, noted: bytes) -> None:
    LocalFiles().replace(str(tmp_path / VACUUMED), noted)
    found_s = vacuumed_s(LocalFiles(), str(tmp_path), "flights", NOW_S)
    assert NOW_S - VACUUM_S <= found_s <= NOW_S
    assert (tmp_path / VACUUMED).read_text() == f"{found_s:.0f}"
