"""A migration that is killed at each of its changes continues, or goes back, from what it has left."""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from headwater.cluster_folder import check_folder, note_start, stored_ids
from headwater.folder_lock import FolderInUseError, lock_folder
from headwater.logtier.broker import BrokerStartError
from headwater.logtier.metadata.store import Create
from headwater.logtier.runtime.disk import RealDisk
from headwater.migration.migrate import Migrating
from headwater.migration.one_node_folder import MigrationError, inspect_folder
from headwater.migration_journal import MIGRATION_FOLDER, MigrationStage, read_journal
from headwater.services import NodeStartError
from tests.unit.migration.conftest import (
    NODES_FILE,
    TOPICS,
    Killed,
    KillingDisk,
    NodesInAFile,
    migrating,
    serve_and_stop,
    tree,
)

LOGS = {f"{topic}-{partition}" for topic, count in TOPICS.items() for partition in range(count)}


def check_migrated(folder: Path, before: dict[str, object]) -> None:
    """The folder is that of three brokers, and the first one has all files of the node."""
    assert stored_ids(str(folder)) == (1, 2, 3)
    check_folder(str(folder), 3)
    journal = read_journal(str(folder))
    assert journal is not None
    assert journal.stage is MigrationStage.MIGRATED
    assert set(os.listdir(folder)) == {".lock", MIGRATION_FOLDER, "broker-1", "cluster.properties", "zookeeper"}
    metadata = folder / MIGRATION_FOLDER / "one-node" / "__cluster_metadata"
    carried = tree(folder / "broker-1") | {".lock": b""}
    carried |= {"__cluster_metadata": os.stat(metadata).st_mode}
    carried |= {f"__cluster_metadata/{name}": data for name, data in tree(metadata).items()}
    assert carried == before
    nodes = json.loads((folder / "zookeeper" / NODES_FILE).read_text())
    assert {f"/brokers/topics/{topic}/0" for topic in TOPICS} < set(nodes)


def forward(folder: Path, left: int | None = None) -> bool:
    """Migrate, unless the process is killed before or the folder is on its way back; return whether it ended."""
    try:
        migrating(folder, left).migrate(None)
    except Killed:
        return False
    return True


def back(folder: Path, left: int | None = None) -> bool:
    """Go back, unless the process is killed before."""
    try:
        migrating(folder, left).go_back()
    except Killed:
        return False
    return True


def changes_of(folder: Path, *, is_back: bool) -> int:
    """The number of changes of a whole way, on a copy."""
    copy = folder.with_name("counted")
    shutil.copytree(folder, copy)
    disk = KillingDisk()
    way = Migrating(str(copy), disk, NodesInAFile(disk), lambda _: None)
    if is_back:
        way.go_back()
    else:
        way.migrate(None)
    shutil.rmtree(copy)
    return disk.changes


def test_a_node_becomes_a_cluster_and_goes_back_as_it_was(node_folder: Path) -> None:
    before = tree(node_folder)
    assert set(before) >= LOGS
    assert forward(node_folder)
    check_migrated(node_folder, before)
    assert back(node_folder)
    assert tree(node_folder) == before
    asyncio.run(serve_and_stop(node_folder))


def test_a_migration_that_is_killed_at_any_change_continues(node_folder: Path, tmp_path: Path) -> None:
    before = tree(node_folder)
    changes = changes_of(node_folder, is_back=False)
    assert changes > len(LOGS) + 10
    for left in range(changes):
        folder = tmp_path / "killed"
        shutil.copytree(node_folder, folder)
        assert not forward(folder, left)
        journal = read_journal(str(folder))
        # Its last change syncs the name of the journal.
        if journal is None or journal.stage is not MigrationStage.MIGRATED:
            assert forward(folder)
        check_migrated(folder, before)
        shutil.rmtree(folder)


def test_a_migration_that_is_killed_at_any_change_goes_back(node_folder: Path, tmp_path: Path) -> None:
    before = tree(node_folder)
    for left in range(changes_of(node_folder, is_back=False)):
        folder = tmp_path / "killed"
        shutil.copytree(node_folder, folder)
        assert not forward(folder, left)
        if read_journal(str(folder)) is None:
            with pytest.raises(MigrationError, match="no migration has begun"):
                back(folder)
            shutil.rmtree(folder / MIGRATION_FOLDER, ignore_errors=True)
        else:
            assert back(folder)
        assert tree(folder) == before
        shutil.rmtree(folder)


def test_a_way_back_that_is_killed_at_any_change_continues(node_folder: Path, tmp_path: Path) -> None:
    before = tree(node_folder)
    assert forward(node_folder)
    for left in range(changes_of(node_folder, is_back=True)):
        folder = tmp_path / "killed"
        shutil.copytree(node_folder, folder)
        assert not back(folder, left)
        if read_journal(str(folder)) is not None:
            assert back(folder)
        found = tree(folder)
        # Its last step is to remove the empty folder.
        found.pop(MIGRATION_FOLDER, None)
        assert found == before
        shutil.rmtree(folder)


@pytest.mark.parametrize("seed", range(25))
def test_kills_in_both_directions_lose_nothing(node_folder: Path, seed: int) -> None:
    chance = random.Random(seed)
    before = tree(node_folder)
    for _ in range(chance.randint(1, 6)):
        journal = read_journal(str(node_folder))
        is_returning = journal is not None and journal.stage is MigrationStage.RETURNING
        is_migrated = journal is not None and journal.stage is MigrationStage.MIGRATED
        if is_returning or is_migrated or (journal is not None and chance.random() < 0.5):
            back(node_folder, chance.randrange(30))
        else:
            forward(node_folder, chance.randrange(40))
    journal = read_journal(str(node_folder))
    if journal is not None and journal.stage is not MigrationStage.MIGRATED and chance.random() < 0.5:
        back(node_folder)
        journal = None
    if journal is None or journal.stage is MigrationStage.RETURNING:
        if journal is not None:
            back(node_folder)
        # What is left of a first or last step, before or after there is a journal, is of no use to anybody.
        shutil.rmtree(node_folder / MIGRATION_FOLDER, ignore_errors=True)
        assert tree(node_folder) == before
        forward(node_folder)
    elif journal.stage is not MigrationStage.MIGRATED:
        forward(node_folder)
    check_migrated(node_folder, before)


def test_neither_a_node_nor_a_cluster_starts_between_the_two(node_folder: Path) -> None:
    changes = changes_of(node_folder, is_back=False)
    unfinished = 0
    for left in range(changes):
        folder = node_folder.with_name("between")
        shutil.copytree(node_folder, folder)
        assert not forward(folder, left)
        journal = read_journal(str(folder))
        if journal is None or journal.stage is MigrationStage.MIGRATED:
            shutil.rmtree(folder)
            continue
        unfinished += 1
        before = tree(folder)
        for brokers in (1, 3):
            with pytest.raises(NodeStartError, match="its migration to a cluster is unfinished"):
                check_folder(str(folder), brokers)
        with pytest.raises(BrokerStartError, match="that of a cluster on one machine, or becomes one"):
            asyncio.run(serve_and_stop(folder))
        assert tree(folder) == before
        shutil.rmtree(folder)
    assert unfinished > len(LOGS) + 10


def test_there_is_no_way_back_once_the_cluster_was_started(node_folder: Path) -> None:
    forward(node_folder)
    note_start(str(node_folder))
    before = tree(node_folder)
    with pytest.raises(MigrationError, match="the cluster has been started"):
        back(node_folder)
    with pytest.raises(MigrationError, match="has been migrated: it is the folder of 3 brokers"):
        forward(node_folder)
    assert tree(node_folder) == before
    shutil.rmtree(node_folder / MIGRATION_FOLDER)  # what is kept aside may be removed
    check_folder(str(node_folder), 3)
    with pytest.raises(MigrationError, match="is the folder of 3 brokers already"):
        forward(node_folder)


def test_a_migration_continues_with_the_number_of_brokers_that_it_began_with(node_folder: Path) -> None:
    changes = KillingDisk(8)
    with pytest.raises(Killed):
        Migrating(str(node_folder), changes, NodesInAFile(changes), lambda _: None).migrate(2)
    plan = migrating(node_folder).plan(None)
    assert (plan.continues, plan.journal.brokers) == (True, (1, 2))
    with pytest.raises(MigrationError, match="a migration to 2 brokers has begun; continue it with --brokers 2"):
        migrating(node_folder).migrate(3)
    migrating(node_folder).migrate(2)
    assert stored_ids(str(node_folder)) == (1, 2)


def test_a_node_with_another_id_keeps_it_and_the_first_port(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    asyncio.run(serve_and_stop(folder, node_id=7))
    assert forward(folder)
    assert stored_ids(str(folder)) == (7, 1, 2)
    assert "node.id=7" in (folder / "broker-7" / "meta.properties").read_text()


def test_files_that_are_not_the_nodes_stay(node_folder: Path) -> None:
    (node_folder / "checkpoints" / "flights").mkdir(parents=True)
    (node_folder / "notes.txt").write_text("mine")
    before = tree(node_folder)
    assert inspect_folder(RealDisk(), str(node_folder)).other_files == ("checkpoints", "notes.txt")
    assert forward(node_folder)
    assert (node_folder / "notes.txt").read_text() == "mine"
    assert (node_folder / "checkpoints" / "flights").is_dir()
    assert back(node_folder)
    assert tree(node_folder) == before


def test_a_disk_that_fails_leaves_a_line_with_both_ways_out(node_folder: Path) -> None:
    class ReadOnly(KillingDisk):
        def rename(self, path: str, new_path: str) -> None:
            if path.endswith("flights-1"):
                raise OSError(18, "Invalid cross-device link", path)
            super().rename(path, new_path)

    disk = ReadOnly()
    before = tree(node_folder)
    with pytest.raises(MigrationError) as caught:
        Migrating(str(node_folder), disk, NodesInAFile(disk), lambda _: None).migrate(None)
    command = f"headwater cluster migrate --data {node_folder}"
    assert str(caught.value) == (
        f"{node_folder}/flights-1: Invalid cross-device link. Mend that, then continue with `{command}`, or go back "
        f"with `{command} --back`"
    )
    assert back(node_folder)
    assert tree(node_folder) == before


def test_a_disk_that_fails_on_the_way_back_leaves_that_way_alone(node_folder: Path) -> None:
    class ReadOnly(KillingDisk):
        def rename(self, path: str, new_path: str) -> None:
            if new_path.endswith("flights-1"):
                raise OSError(18, "Invalid cross-device link", path)
            super().rename(path, new_path)

    before = tree(node_folder)
    assert forward(node_folder)
    disk = ReadOnly()
    with pytest.raises(MigrationError) as caught:
        Migrating(str(node_folder), disk, NodesInAFile(disk), lambda _: None).go_back()
    assert str(caught.value).endswith(f"Mend that, then repeat `headwater cluster migrate --data {node_folder} --back`")
    assert back(node_folder)
    assert tree(node_folder) == before


def test_a_zookeeper_that_cannot_be_written_leaves_both_ways_out(node_folder: Path) -> None:
    class Failing(NodesInAFile):
        def write(self, creates: Sequence[Create], folder: str) -> None:
            raise MigrationError("the server ended")

    before = tree(node_folder)
    disk = KillingDisk()
    with pytest.raises(MigrationError, match=r"the server ended\. Mend that, then continue with .* or go back with"):
        Migrating(str(node_folder), disk, Failing(disk), lambda _: None).migrate(None)
    assert back(node_folder)
    assert tree(node_folder) == before


def test_without_a_zookeeper_to_run_nothing_begins(node_folder: Path) -> None:
    class Missing(NodesInAFile):
        def check(self) -> None:
            raise MigrationError("there is no java")

    before = tree(node_folder)
    disk = KillingDisk()
    with pytest.raises(MigrationError, match="there is no java"):
        Migrating(str(node_folder), disk, Missing(disk), lambda _: None).migrate(None)
    assert (tree(node_folder), disk.changes) == (before, 0)


def test_the_way_back_waits_for_a_zookeeper_of_a_start_that_was_killed(node_folder: Path) -> None:
    class Held(NodesInAFile):
        def await_end(self, folder: str) -> None:
            if os.path.isdir(folder):
                try:
                    os.close(lock_folder(folder))
                except FolderInUseError as error:
                    raise MigrationError(str(error)) from None

    before = tree(node_folder)
    forward(node_folder)
    lock = lock_folder(str(node_folder / "zookeeper"))
    migrated = tree(node_folder)
    disk = KillingDisk()
    way = Migrating(str(node_folder), disk, Held(disk), lambda _: None)
    with pytest.raises(MigrationError, match="zookeeper is in use by another process"):
        way.go_back()
    assert tree(node_folder) == migrated
    os.close(lock)
    way.go_back()
    assert tree(node_folder) == before


def test_a_start_that_came_to_no_broker_leaves_nothing_on_the_way_back(node_folder: Path) -> None:
    before = tree(node_folder)
    forward(node_folder)
    (node_folder / "zookeeper.jaas").write_text("Server {};")
    assert back(node_folder)
    assert tree(node_folder) == before
