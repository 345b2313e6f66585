"""The history of leader epochs, as Kafka answers OffsetForLeaderEpoch from it."""

from __future__ import annotations

from pathlib import Path

import pytest

from headwater.logtier.log.leader_epochs import LeaderEpochs
from headwater.logtier.runtime.disk import RealDisk


@pytest.fixture
def epochs(tmp_path: Path) -> LeaderEpochs:
    history = LeaderEpochs(RealDisk(), str(tmp_path))
    for epoch, offset in ((2, 0), (3, 10), (7, 20)):
        history.assign(epoch, offset)
    return history


def test_an_epoch_ends_where_the_next_one_begins(epochs: LeaderEpochs) -> None:
    assert epochs.end_offset_for(2, 30) == (2, 10)
    assert epochs.end_offset_for(5, 30) == (3, 20)
    assert epochs.end_offset_for(7, 30) == (7, 30)


def test_epochs_that_the_log_does_not_know_are_undefined(epochs: LeaderEpochs) -> None:
    assert epochs.end_offset_for(8, 30) == (-1, -1)
    assert epochs.end_offset_for(-1, 30) == (-1, -1)
    assert epochs.end_offset_for(1, 30) == (1, 0)


def test_an_epoch_without_records_is_replaced(epochs: LeaderEpochs) -> None:
    epochs.assign(8, 20)
    assert epochs.entries() == [(2, 0), (3, 10), (8, 20)]
    epochs.assign(8, 25)
    epochs.assign(4, 25)
    assert epochs.latest == 8
    assert epochs.entries() == [(2, 0), (3, 10), (8, 20)]


def test_truncation_forgets_epochs_at_both_ends(epochs: LeaderEpochs) -> None:
    epochs.truncate_from_end(20)
    assert epochs.entries() == [(2, 0), (3, 10)]
    epochs.truncate_from_start(5)
    assert epochs.entries() == [(2, 5), (3, 10)]
    epochs.truncate_from_start(10)
    assert epochs.entries() == [(3, 10)]
    assert [epochs.epoch_at(offset) for offset in (9, 10, 99)] == [-1, 3, 3]


def test_the_file_is_kafkas_and_is_read_back(epochs: LeaderEpochs, tmp_path: Path) -> None:
    assert (tmp_path / "leader-epoch-checkpoint").read_text() == "0\n3\n2 0\n3 10\n7 20\n"
    again = LeaderEpochs(RealDisk(), str(tmp_path))
    assert again.load()
    assert again.entries() == epochs.entries()


@pytest.mark.parametrize("text", ["", "0\n", "1\n0\n", "0\n2\n1 1\n", "0\n1\n1\n", "0\n2\n3 1\n2 5\n"])
def test_a_damaged_file_counts_as_empty(tmp_path: Path, text: str) -> None:
    (tmp_path / "leader-epoch-checkpoint").write_text(text)
    history = LeaderEpochs(RealDisk(), str(tmp_path))
    assert not history.load()
    assert history.entries() == []
