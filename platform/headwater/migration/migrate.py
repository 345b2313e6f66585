"""Migrates the data folder of one node to that of a cluster, or back, while nobody uses it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from headwater.cluster_folder import BROKERS_MAX, ClusterFolderError, read_folder_journal
from headwater.folder_lock import FolderInUseError, lock_folder
from headwater.logtier.log.folders.log_directory import META_PROPERTIES
from headwater.logtier.machine import METADATA_DIRECTORY
from headwater.logtier.runtime.disk import Disk
from headwater.migration.folder_steps import FolderSteps, ZooKeeperFiles
from headwater.migration.one_node_folder import MigrationError, OneNodeFolder, check_room, inspect_folder
from headwater.migration_journal import MigrationJournal, MigrationStage, journal_path

BROKERS_DEFAULT: Final = 3


class MigrationPlan(NamedTuple):
    """What a migration does: it begins with a folder of one node, or continues by the journal."""

    journal: MigrationJournal
    folder: OneNodeFolder | None

    @property
    def continues(self) -> bool:
        """Whether an earlier command has begun."""
        return self.folder is None


def cluster_ids(node_id: int, brokers: int) -> tuple[int, ...]:
    """Return the ids of the brokers: the node comes first, so that it keeps its port.

    >>> cluster_ids(1, 3), cluster_ids(2, 3), cluster_ids(0, 2)
    ((1, 2, 3), (2, 1, 3), (0, 1))
    """
    others = [each for each in range(1, brokers + 1) if each != node_id]
    return (node_id, *others[: brokers - 1])


class Migrating:
    """A migration of a folder, from the lock to the end.

    Only the methods of this class change the folder. Each holds the locks of the folder and of its metadata: nodes and
    clusters hold them while they run.
    """

    def __init__(self, data_dir: str, disk: Disk, zookeeper: ZooKeeperFiles, report: Callable[[str], None]) -> None:
        self._data_dir = data_dir
        self._disk = disk
        self._zookeeper = zookeeper
        self._steps = FolderSteps(data_dir, disk, zookeeper, report)

    def plan(self, brokers: int | None) -> MigrationPlan:
        """Return what a migration would do, and change nothing.

        Args:
            brokers: Number of brokers; None for BROKERS_DEFAULT, or for that of a migration that has begun.

        Raises:
            MigrationError: The folder cannot be migrated.
        """
        with self._locked():
            return self._plan(brokers)

    def migrate(self, brokers: int | None) -> MigrationJournal:
        """Migrate the folder, or continue; return the state at the end.

        Raises:
            MigrationError: It cannot be migrated, or not further at present; the line says what to do.
        """
        with self._locked(), self._working(self._ways_out):
            journal, folder = self._plan(brokers)
            if folder is not None:
                self._steps.begin(journal)
            try:
                return self._steps.go_forward(journal)
            except MigrationError as error:
                raise MigrationError(f"{error}. {self._ways_out}") from error

    def go_back(self) -> None:
        """Make the folder that of one node again.

        Raises:
            MigrationError: There is no way back, or not at present; the line says what to do.
        """
        with self._locked(), self._working(f"Mend that, then repeat `{self._command} --back`"):
            journal = self._journal()
            if journal is None:
                raise MigrationError(f"{self._data_dir}: no migration has begun there, so there is no way to go back")
            if journal.stage is MigrationStage.STARTED:
                raise MigrationError(
                    f"{self._data_dir}: the cluster has been started, and its brokers may have written what one node "
                    "alone would lack; there is no way back"
                )
            self._steps.go_back(journal)

    def _plan(self, brokers: int | None) -> MigrationPlan:
        journal = self._journal()
        if journal is None:
            folder = inspect_folder(self._disk, self._data_dir)
            ids = cluster_ids(folder.node_id, BROKERS_DEFAULT if brokers is None else brokers)
            assert 2 <= len(ids) <= BROKERS_MAX
            check_room(self._disk, folder, ids)
            self._zookeeper.check()
            return MigrationPlan(
                MigrationJournal(MigrationStage.COPYING, folder.node_id, ids, folder.cluster_id), folder
            )
        if journal.stage is MigrationStage.RETURNING:
            raise MigrationError(
                f"{self._data_dir} is becoming the folder of one node again; finish that first: "
                f"`{self._command} --back`"
            )
        count = len(journal.brokers)
        if journal.stage in (MigrationStage.MIGRATED, MigrationStage.STARTED):
            raise MigrationError(
                f"{self._data_dir} has been migrated: it is the folder of {count} brokers; start it with `headwater up "
                f"--brokers {count} --data {self._data_dir}`"
            )
        if brokers not in (None, count):
            raise MigrationError(
                f"{self._data_dir}: a migration to {count} brokers has begun; continue it with --brokers {count}, or "
                f"go back first: `{self._command} --back`"
            )
        return MigrationPlan(journal, None)

    def _journal(self) -> MigrationJournal | None:
        try:
            return read_folder_journal(self._data_dir)
        except ClusterFolderError as error:
            raise MigrationError(str(error)) from None

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the locks of the folder and, where a node has it, of the metadata, which a broker locks first."""
        if not os.path.isdir(self._data_dir):
            raise MigrationError(f"{self._data_dir} is not a folder; name that of `headwater up` with --data")
        known = (os.path.join(self._data_dir, META_PROPERTIES), journal_path(self._data_dir))
        metadata = os.path.join(self._data_dir, METADATA_DIRECTORY)
        held: list[int] = []
        try:
            # Nothing is written to a folder of somebody else's, not even a lock.
            if any(map(os.path.exists, known)):
                held.append(lock_folder(self._data_dir))
            if held and os.path.isdir(metadata):
                held.append(lock_folder(metadata))
            yield
        except FolderInUseError:
            raise MigrationError(
                f"{self._data_dir} is in use: stop the node or the cluster first; a folder is migrated while nobody "
                "uses it"
            ) from None
        except OSError as error:
            reason = f"{error.filename or self._data_dir}: {error.strerror or error}"
            raise MigrationError(
                f"{reason}; check the path and its permissions, and run as the user of the node"
            ) from None
        finally:
            for descriptor in held:
                os.close(descriptor)

    @contextlib.contextmanager
    def _working(self, remedy: str) -> Iterator[None]:
        """Report an error of the disk with what can be done."""
        try:
            yield
        except OSError as error:
            reason = f"{error.filename or self._data_dir}: {error.strerror or error}"
            raise MigrationError(f"{reason}. {remedy}") from error

    @property
    def _command(self) -> str:
        return f"headwater cluster migrate --data {self._data_dir}"

    @property
    def _ways_out(self) -> str:
        return f"Mend that, then continue with `{self._command}`, or go back with `{self._command} --back`"
