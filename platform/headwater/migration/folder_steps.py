"""The steps from the folder of one node to that of a cluster, and back: each may be repeated, and is then noted."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from headwater.cluster_folder import JAAS_FILE, LAYOUT_FILE, ZOOKEEPER_FOLDER, broker_folder, encode_layout
from headwater.logtier.log.folders.log_directory import LOCK, META_PROPERTIES
from headwater.logtier.machine import METADATA_DIRECTORY
from headwater.logtier.metadata.store import Create
from headwater.logtier.runtime.disk import Disk
from headwater.logtier.runtime.durable_folder import make_durable_folder
from headwater.migration.one_node_folder import MigrationError, inspect_folder, is_broker_file
from headwater.migration_journal import MIGRATION_FOLDER, MigrationJournal, MigrationStage, encode_journal, journal_path

#: Below MIGRATION_FOLDER: the broker's files on their way, and what a cluster has no use for, until it is removed.
BROKER_FOLDER: Final = "broker"
ONE_NODE_FOLDER: Final = "one-node"


class ZooKeeperFiles(Protocol):
    """The files of a ZooKeeper that only this migration uses."""

    def check(self) -> None:
        """Check, before anything is changed, that files can be written; MigrationError."""

    def write(self, creates: Sequence[Create], folder: str) -> None:
        """Write nodes into files in a new folder, which are on the device on return; MigrationError."""

    def await_end(self, folder: str) -> None:
        """Wait until no server uses a folder, as that of a command that was killed may; MigrationError."""


class FolderSteps:
    """Makes the folder of one node that of a cluster, or the other way round.

    Invariant: the journal names the stage whose work may be half done. All work of the stages before it is on the
    device, and nothing of the later ones has begun. So a migration that was killed continues, or goes back, from the
    journal alone. A file is either where the node has it or where the cluster has it: files are renamed, not copied.

    The caller holds the locks of the folder and of its metadata.
    """

    def __init__(
        self,
        data_dir: str,
        disk: Disk,
        zookeeper: ZooKeeperFiles,
        report: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`report` is called with a line for the user before each step."""
        self._data_dir = data_dir
        self._disk = disk
        self._zookeeper = zookeeper
        self._report = report

    def begin(self, journal: MigrationJournal) -> None:
        """Note that the migration begins. Nothing else is changed."""
        assert journal.stage is MigrationStage.COPYING
        make_durable_folder(self._disk, self._migration())
        self._write_journal(journal)

    def go_forward(self, journal: MigrationJournal) -> MigrationJournal:
        """Continue to the end, from the stage of the journal; return the journal at the end.

        Raises:
            MigrationError: The metadata cannot be copied.
            OSError: A file cannot be moved; the migration can be continued.
        """
        assert journal.stage is not MigrationStage.RETURNING
        if journal.stage is MigrationStage.COPYING:
            journal = self._finish(self._copy_metadata, journal, MigrationStage.MOVING)
        if journal.stage is MigrationStage.MOVING:
            journal = self._finish(self._move_files, journal, MigrationStage.PLACING)
        if journal.stage is MigrationStage.PLACING:
            journal = self._finish(self._place, journal, MigrationStage.MIGRATED)
        return journal

    def go_back(self, journal: MigrationJournal) -> None:
        """Make the folder that of one node again, from any stage before the cluster has been started.

        Raises:
            MigrationError: A ZooKeeper still uses its files; nothing was changed.
            OSError: A file cannot be moved; the way back can be continued.
        """
        assert journal.stage is not MigrationStage.STARTED
        # A server of a start that was killed, or of a copy, still writes for a moment.
        for folder in (self._path(ZOOKEEPER_FOLDER), self._migration(ZOOKEEPER_FOLDER)):
            self._zookeeper.await_end(folder)
        self._report("moving the node's files back")
        if journal.stage is not MigrationStage.RETURNING:
            self._write_journal(dataclasses.replace(journal, stage=MigrationStage.RETURNING))
        self._unplace(journal)
        self._move_files_back()
        self._end()

    # -- forward

    def _finish(
        self, work: Callable[[MigrationJournal], None], journal: MigrationJournal, following: MigrationStage
    ) -> MigrationJournal:
        work(journal)
        journal = dataclasses.replace(journal, stage=following)
        self._write_journal(journal)
        return journal

    def _copy_metadata(self, journal: MigrationJournal) -> None:
        """Write the ZooKeeper, from the start: what an interrupted attempt has left is of unknown value."""
        folder = inspect_folder(self._disk, self._data_dir)
        if (folder.node_id, folder.cluster_id) != (journal.node_id, journal.cluster_id):
            raise MigrationError(
                f"{self._data_dir}: the migration began with node {journal.node_id} of cluster {journal.cluster_id}, "
                f"and the folder is that of node {folder.node_id} of cluster {folder.cluster_id} now; go back with "
                "--back"
            )
        self._report(f"copying {len(folder.metadata.creates)} nodes of metadata into a ZooKeeper")
        copy = self._migration(ZOOKEEPER_FOLDER)
        self._zookeeper.await_end(copy)
        self._disk.rmtree(copy)
        self._zookeeper.write(folder.metadata.creates, copy)
        self._disk.fsync_directory(self._migration())

    def _move_files(self, journal: MigrationJournal) -> None:
        broker, one_node = self._migration(BROKER_FOLDER), self._migration(ONE_NODE_FOLDER)
        self._report(f"moving the files of broker {journal.node_id}")
        self._disk.makedirs(broker)
        self._disk.makedirs(one_node)
        self._disk.fsync_directory(self._migration())
        # First: without its metadata no broker starts here, whatever becomes of the journal.
        self._move(METADATA_DIRECTORY, self._data_dir, one_node)
        for entry in self._disk.listdir(self._data_dir):
            if is_broker_file(entry):
                self._move(entry.name, self._data_dir, broker)
        for folder in (broker, one_node, self._data_dir):
            self._disk.fsync_directory(folder)

    def _place(self, journal: MigrationJournal) -> None:
        self._report(f"making the folder that of brokers {', '.join(map(str, journal.brokers))}")
        for name, new_name in (
            (ZOOKEEPER_FOLDER, ZOOKEEPER_FOLDER),
            (BROKER_FOLDER, broker_folder(journal.node_id)),
        ):
            if self._disk.exists(self._migration(name)):
                self._disk.rename(self._migration(name), self._path(new_name))
        self._disk.fsync_directory(self._data_dir)
        self._disk.fsync_directory(self._migration())
        self._disk.write_atomic(self._path(LAYOUT_FILE), encode_layout(journal.brokers).encode())

    # -- back

    def _unplace(self, journal: MigrationJournal) -> None:
        """Take the layout, the ZooKeeper and the broker's folder away."""
        # A start that has come to no broker leaves its login for the ZooKeeper.
        for name in (LAYOUT_FILE, f"{LAYOUT_FILE}.tmp", JAAS_FILE, f"{JAAS_FILE}.tmp"):
            self._disk.remove(self._path(name))
        placed, broker = self._path(broker_folder(journal.node_id)), self._migration(BROKER_FOLDER)
        # Else a folder of that name is a log: partition 1 of a topic `broker`.
        if self._disk.exists(os.path.join(placed, META_PROPERTIES)):
            self._disk.rename(placed, broker)
        self._disk.rmtree(self._path(ZOOKEEPER_FOLDER))
        self._disk.rmtree(self._migration(ZOOKEEPER_FOLDER))
        self._disk.fsync_directory(self._data_dir)

    def _move_files_back(self) -> None:
        broker, one_node = self._migration(BROKER_FOLDER), self._migration(ONE_NODE_FOLDER)
        if self._disk.exists(broker):
            for entry in self._disk.listdir(broker):
                if entry.name != LOCK:
                    self._move(entry.name, broker, self._data_dir)
            self._disk.fsync_directory(self._data_dir)
            self._disk.fsync_directory(broker)
        # Last: with its metadata the folder is that of a node again.
        if self._disk.exists(one_node):
            self._move(METADATA_DIRECTORY, one_node, self._data_dir)
        self._disk.fsync_directory(self._data_dir)

    def _end(self) -> None:
        """Remove what the migration has made; the journal at last, and before it nothing that it would miss."""
        for name in (BROKER_FOLDER, ONE_NODE_FOLDER):
            self._disk.rmtree(self._migration(name))
        self._disk.fsync_directory(self._migration())
        self._disk.remove(journal_path(self._data_dir))
        self._disk.fsync_directory(self._migration())
        self._disk.rmtree(self._migration())
        self._disk.fsync_directory(self._data_dir)

    # -- files

    def _move(self, name: str, folder: str, new_folder: str) -> None:
        """Rename a file into another folder, unless that was done before."""
        path, new_path = os.path.join(folder, name), os.path.join(new_folder, name)
        if self._disk.exists(path):
            self._disk.rename(path, new_path)

    def _write_journal(self, journal: MigrationJournal) -> None:
        self._disk.write_atomic(journal_path(self._data_dir), encode_journal(journal))

    def _path(self, name: str) -> str:
        return os.path.join(self._data_dir, name)

    def _migration(self, *names: str) -> str:
        return os.path.join(self._data_dir, MIGRATION_FOLDER, *names)
