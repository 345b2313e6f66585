import os
from pathlib import Path

import pytest

from headwater.followed_file import FilePosition
from headwater.shipped_positions import PositionsError, load_positions, locked, save_positions

POSITION = FilePosition(device=1, inode=2, offset=3, fingerprint=4, fingerprint_bytes=3)


def test_positions_come_back_as_they_were_saved(tmp_path: Path) -> None:
    path = str(tmp_path / "positions.json")
    save_positions(path, {"/var/log/a": POSITION, "/var/log/ä b": POSITION})
    assert load_positions(path) == {"/var/log/a": POSITION, "/var/log/ä b": POSITION}
    assert os.listdir(tmp_path) == ["positions.json"]


def test_there_are_none_before_the_first_time(tmp_path: Path) -> None:
    assert load_positions(str(tmp_path / "positions.json")) == {}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"version": 1}',
        '{"version": 1, "files": {"a": {"offset": -1}}}',
        '{"version": 1, "files": {"a": 7}}',
    ],
)
def test_a_file_that_holds_something_else_is_refused_and_left_alone(tmp_path: Path, text: str) -> None:
    path = tmp_path / "positions.json"
    path.write_text(text)
    with pytest.raises(PositionsError, match="is not a file of positions"):
        load_positions(str(path))
    assert path.read_text() == text


def test_positions_of_a_release_to_come_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "positions.json"
    path.write_text('{"version": 2, "files": {}}')
    with pytest.raises(PositionsError, match="has version 2"):
        load_positions(str(path))


def test_a_second_shipper_is_kept_from_the_same_positions(tmp_path: Path) -> None:
    path = str(tmp_path / "positions.json")
    with locked(path), pytest.raises(PositionsError, match="used by another process"), locked(path):
        pass
    with locked(path):
        pass
