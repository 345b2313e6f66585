"""How far the migration of a node's folder to a cluster has come: a small file in that folder."""

from __future__ import annotations

import enum
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

#: Folder in the data folder with everything that belongs to the migration alone.
MIGRATION_FOLDER: Final = "cluster-migration"
JOURNAL_FILE: Final = "journal.json"
JOURNAL_BYTES_MAX: Final = 65_536
_VERSION: Final = 1


class MigrationStage(enum.Enum):
    """The stages of a migration.

    COPYING -> MOVING -> PLACING -> MIGRATED, each when its work is on the device; MIGRATED -> STARTED before a broker
    of the cluster runs. From any stage before STARTED -> RETURNING, whose end removes the journal.
    """

    COPYING = "copying"
    """The metadata is being copied into a ZooKeeper; the node's files are as they were."""
    MOVING = "moving"
    """The copy is complete; the node's files are being moved to a folder of their own."""
    PLACING = "placing"
    """All files are moved; the folders of the cluster get their names."""
    MIGRATED = "migrated"
    """The folder is that of a cluster, which has not been started."""
    STARTED = "started"
    """The cluster has been started: its brokers may have written, and there is no way back."""
    RETURNING = "returning"
    """The folder is becoming that of one node again."""


UNFINISHED: Final = frozenset(
    {MigrationStage.COPYING, MigrationStage.MOVING, MigrationStage.PLACING, MigrationStage.RETURNING}
)
"""Stages in which neither a node nor a cluster can be started."""


class JournalError(RuntimeError):
    """The journal is damaged or cannot be read; the message is one line for the user."""


@dataclass(frozen=True, slots=True)
class MigrationJournal:
    """The state of a migration.

    Attributes:
        node_id: Id of the node, which its broker keeps.
        brokers: Ids of the cluster's brokers; the first one gets the first port.
        cluster_id: Id of the cluster, which stays.
    """

    stage: MigrationStage
    node_id: int
    brokers: tuple[int, ...]
    cluster_id: str


def journal_path(data_dir: str) -> str:
    """Path of the journal."""
    return os.path.join(data_dir, MIGRATION_FOLDER, JOURNAL_FILE)


def encode_journal(journal: MigrationJournal) -> bytes:
    """Return the contents of the file.

    >>> journal = MigrationJournal(MigrationStage.MOVING, 1, (1, 2, 3), "id")
    >>> decode_journal("journal.json", encode_journal(journal)) == journal
    True
    """
    fields = {
        "version": _VERSION,
        "stage": journal.stage.value,
        "node_id": journal.node_id,
        "brokers": journal.brokers,
        "cluster_id": journal.cluster_id,
    }
    return json.dumps(fields, indent=2).encode() + b"\n"


def decode_journal(path: str, data: bytes) -> MigrationJournal:
    """Return the journal from the contents of its file; JournalError."""
    try:
        fields = json.loads(data)
        if fields["version"] != _VERSION:
            raise JournalError(f"{path} is of another version of Headwater: use the version that wrote it")
        node_id, brokers = fields["node_id"], fields["brokers"]
        if not _are_ids(brokers) or node_id not in brokers:
            raise ValueError(brokers)
        return MigrationJournal(MigrationStage(fields["stage"]), node_id, tuple(brokers), str(fields["cluster_id"]))
    except (KeyError, TypeError, ValueError):
        raise JournalError(
            f"{path}, which says how far the migration to a cluster has come, is damaged: restore it from a backup of "
            "the folder"
        ) from None


def _are_ids(brokers: Any) -> bool:
    is_list = isinstance(brokers, Sequence) and len(set(brokers)) == len(brokers) > 1
    return is_list and all(each.__class__ is int and each >= 0 for each in brokers)


def read_journal(data_dir: str) -> MigrationJournal | None:
    """Return the journal of a folder, None without one; JournalError."""
    path = journal_path(data_dir)
    try:
        with open(path, "rb") as file:
            return decode_journal(path, file.read(JOURNAL_BYTES_MAX))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise JournalError(f"{path} cannot be read: {error.strerror}; check its permissions") from None
