"""The layout of a cluster's folder, and the note that its brokers have started."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.cluster_folder import (
    BROKERS_MAX,
    LAYOUT_FILE,
    ClusterFolderError,
    broker_ids,
    check_folder,
    decode_layout,
    encode_layout,
    note_start,
    stored_ids,
)
from headwater.local_cluster import LocalCluster
from headwater.migration_journal import (
    MigrationJournal,
    MigrationStage,
    decode_journal,
    encode_journal,
    journal_path,
    read_journal,
)

IDS = st.lists(st.integers(0, 2**31 - 1), min_size=2, max_size=BROKERS_MAX, unique=True).map(tuple)


@given(IDS)
def test_a_layout_is_read_as_it_was_written(ids: tuple[int, ...]) -> None:
    assert decode_layout(encode_layout(ids)) == ids


@given(st.sampled_from(MigrationStage), IDS)
def test_a_journal_is_read_as_it_was_written(stage: MigrationStage, ids: tuple[int, ...]) -> None:
    journal = MigrationJournal(stage, ids[0], ids, "cluster")
    assert decode_journal("journal.json", encode_journal(journal)) == journal


@pytest.mark.parametrize(
    "text", ["brokers=3\nids=1,2\n", "brokers=2\nids=1,1\n", "brokers=2\nids=1,-2\n", "brokers=2\nnames=1,2\n", "\n\n"]
)
def test_damaged_ids_are_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / LAYOUT_FILE).write_text(text)
    with pytest.raises(ClusterFolderError, match="is damaged"):
        stored_ids(str(tmp_path))


def test_a_cluster_starts_the_brokers_of_its_folder_in_the_order_of_their_ports(tmp_path: Path) -> None:
    (tmp_path / LAYOUT_FILE).write_text("brokers=3\nids=7,1,2\n")
    check_folder(str(tmp_path), 3)
    assert broker_ids(str(tmp_path), 3) == (7, 1, 2)
    brokers = LocalCluster(str(tmp_path), 3, 9092)._brokers
    commands = {node_id: child._command(None) for node_id, child in brokers.items()}
    ports = {node_id: command[command.index("--kafka-port") + 1] for node_id, command in commands.items()}
    assert ports == {7: "9092", 1: "9093", 2: "9094"}
    assert commands[7][commands[7].index("--data") + 1] == str(tmp_path / "broker-7")


def test_only_a_migrated_folder_is_noted_as_started(tmp_path: Path) -> None:
    note_start(str(tmp_path))
    assert list(tmp_path.iterdir()) == []
    path = Path(journal_path(str(tmp_path)))
    path.parent.mkdir()
    for stage in MigrationStage:
        journal = MigrationJournal(stage, 1, (1, 2, 3), "cluster")
        path.write_bytes(encode_journal(journal))
        note_start(str(tmp_path))
        noted = read_journal(str(tmp_path))
        assert noted is not None
        expected = MigrationStage.STARTED if stage is MigrationStage.MIGRATED else stage
        assert noted.stage is expected


def test_a_start_that_cannot_be_noted_starts_no_broker(tmp_path: Path) -> None:
    path = Path(journal_path(str(tmp_path)))
    path.parent.mkdir()
    path.write_bytes(encode_journal(MigrationJournal(MigrationStage.MIGRATED, 1, (1, 2), "cluster")))
    path.with_suffix(".json.tmp").mkdir()  # stands for a disk that cannot be written
    with pytest.raises(ClusterFolderError, match="check the path and its permissions"):
        note_start(str(tmp_path))
