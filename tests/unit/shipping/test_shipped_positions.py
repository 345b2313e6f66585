import dataclasses
import json
import os
from pathlib import Path

import pytest

from headwater.shipping.followed_file import FilePosition
from headwater.shipping.shipped_positions import KnownFile, PositionsError, load_positions, locked, save_positions

POSITION = FilePosition(device=1, inode=2, offset=3, fingerprint=4, fingerprint_bytes=3)


def test_positions_come_back_as_they_were_saved(tmp_path: Path) -> None:
    path = str(tmp_path / "positions.json")
    # Rotated files of one name, in their order.
    files = [
        KnownFile("/var/log/ä b", POSITION, done_ns=5),
        KnownFile("/var/log/a", dataclasses.replace(POSITION, inode=9)),
        KnownFile("/var/log/a", dataclasses.replace(POSITION, inode=4)),
    ]
    save_positions(path, files)
    assert list(load_positions(path).items()) == [((1, 2), files[0]), ((1, 9), files[1]), ((1, 4), files[2])]
    assert os.listdir(tmp_path) == ["positions.json"]


def test_positions_of_the_release_before_are_read(tmp_path: Path) -> None:
    path = tmp_path / "positions.json"
    further = dataclasses.replace(POSITION, offset=7)
    files = {"/link": dataclasses.asdict(further), "/a": dataclasses.asdict(POSITION)}
    path.write_text(json.dumps({"version": 1, "files": files}))
    assert load_positions(str(path)) == {(1, 2): KnownFile("/a", POSITION)}


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
        '{"version": 2, "files": [7]}',
        '{"version": 2, "files": [{"path": "a", "done_ns": null, "offset": 1}]}',
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
    path.write_text('{"version": 3, "files": []}')
    with pytest.raises(PositionsError, match="has version 3"):
        load_positions(str(path))


def test_a_second_shipper_is_kept_from_the_same_positions(tmp_path: Path) -> None:
    path = str(tmp_path / "positions.json")
    with locked(path), pytest.raises(PositionsError, match="used by another process"), locked(path):
        pass
    with locked(path):
        pass
