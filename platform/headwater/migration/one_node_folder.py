"""What is in the data folder of one node: its metadata, the files of its broker, and what keeps it from a cluster."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from headwater.cluster_folder import (
    JAAS_FILE,
    LAYOUT_FILE,
    ZOOKEEPER_FOLDER,
    ClusterFolderError,
    broker_folder,
    stored_ids,
)
from headwater.logtier.log.folders.log_directory import (
    CLEAN_SHUTDOWN,
    KNOWN_DIRECTORIES,
    LOCK,
    META_PROPERTIES,
    LogDirError,
    read_meta,
)
from headwater.logtier.log.folders.log_folders import is_broker_folder
from headwater.logtier.log.folders.opened_directories import read_known_directories
from headwater.logtier.machine import METADATA_DIRECTORY
from headwater.logtier.metadata.carried_nodes import (
    CarriedNodes,
    EarlierMetadataError,
    OtherBrokerError,
    carry_nodes,
)
from headwater.logtier.metadata.journal_entries import read_local_nodes
from headwater.logtier.metadata.paths import CorruptNodeError
from headwater.logtier.metadata.store import MetadataStoreError
from headwater.logtier.protocol.features import UnsupportedFeaturesError
from headwater.logtier.runtime.disk import DirectoryEntry, Disk
from headwater.migration_journal import MIGRATION_FOLDER
from headwater.process_list import PROCESS_LIST

#: Room for ZooKeeper's files: it allocates its transaction log by 64 MiB, and has a snapshot and a log of each start.
ZOOKEEPER_FREE_BYTES: Final = 256 << 20
#: Files of a broker in its log folder beside the logs: checkpoints of offsets, also while they are written.
_CHECKPOINT: Final = re.compile(r"[a-z-]+-checkpoint(\.tmp)?")
_FILES: Final = frozenset(
    name + suffix for name in (META_PROPERTIES, CLEAN_SHUTDOWN, KNOWN_DIRECTORIES) for suffix in ("", ".tmp")
)


class MigrationError(RuntimeError):
    """The folder cannot be migrated, or not further; the message is one line for the user."""


@dataclass(frozen=True, slots=True)
class OneNodeFolder:
    """The folder of a stopped node.

    Attributes:
        broker_files: Names of the files and folders that belong to the broker, without its metadata.
        other_files: Names of those that do not, which stay.
        log_bytes: Size of the logs.
    """

    data_dir: str
    node_id: int
    cluster_id: str
    metadata: CarriedNodes
    broker_files: tuple[str, ...]
    other_files: tuple[str, ...]
    log_bytes: int

    @property
    def topics(self) -> int:
        """Number of topics, the brokers' own among them."""
        return len(self.metadata.image.topics)

    @property
    def partitions(self) -> int:
        """Number of partitions."""
        return sum(len(topic.partitions) for topic in self.metadata.image.topics.values())


def is_broker_file(entry: DirectoryEntry) -> bool:
    """Whether an entry of a log folder belongs to the broker. Its lock and its metadata are not among them."""
    return is_broker_folder(entry.name) if entry.is_directory else _is_file_name(entry.name)


def _is_file_name(name: str) -> bool:
    return name in _FILES or _CHECKPOINT.fullmatch(name) is not None


def inspect_folder(disk: Disk, data_dir: str) -> OneNodeFolder:
    """Read the folder of a stopped node, and change nothing.

    Raises:
        MigrationError: It is not the folder of one node, or not one that this version can carry over.
    """
    node_id, cluster_id = _identity(disk, data_dir)
    _check_single_folder(disk, data_dir)
    metadata = _read_metadata(disk, data_dir, node_id)
    if metadata.image.cluster_id != cluster_id:
        raise MigrationError(
            f"{data_dir}: its logs are those of cluster {cluster_id}, and its metadata those of cluster "
            f"{metadata.image.cluster_id}; restore {METADATA_DIRECTORY} from a backup"
        )
    _check_links(data_dir)
    entries = disk.listdir(data_dir)
    own = [entry for entry in entries if is_broker_file(entry)]
    ours = {entry.name for entry in own}
    ours |= {METADATA_DIRECTORY, MIGRATION_FOLDER, LOCK, PROCESS_LIST}
    others = [entry.name for entry in entries if entry.name not in ours]
    return OneNodeFolder(
        data_dir,
        node_id,
        cluster_id,
        metadata,
        tuple(entry.name for entry in own),
        tuple(others),
        sum(_folder_bytes(disk, os.path.join(data_dir, entry.name)) for entry in own if entry.is_directory),
    )


def check_room(disk: Disk, folder: OneNodeFolder, brokers: Sequence[int]) -> None:
    """Check that the cluster's names are free, and that the disk has room for the copy of the metadata.

    Raises:
        MigrationError: A name is taken, or there is too little room.
    """
    taken = {ZOOKEEPER_FOLDER, JAAS_FILE, *(f"broker-{each}.yaml" for each in brokers)}.intersection(folder.other_files)
    for name in map(broker_folder, brokers):
        # The name may be that of a log: partition 1 of a topic `broker`.
        is_log = not disk.exists(os.path.join(folder.data_dir, name, META_PROPERTIES))
        if name in folder.other_files or (name in folder.broker_files and not is_log):
            taken.add(name)
    if taken:
        raise MigrationError(
            f"{os.path.join(folder.data_dir, min(taken))} is in the way: a cluster has a file of that name, and this "
            "one is not the node's; move it elsewhere"
        )
    needed = ZOOKEEPER_FREE_BYTES + 4 * sum(len(each.data) + len(each.path) for each in folder.metadata.creates)
    free = disk.free_bytes(folder.data_dir)
    if free < needed:
        raise MigrationError(
            f"{folder.data_dir}: the disk has {free >> 20} MiB free, and the copy of the metadata needs "
            f"{-(-needed >> 20)} MiB; make room. The logs themselves are moved, not copied"
        )


def _identity(disk: Disk, data_dir: str) -> tuple[int, str]:
    """Return the id of the node, and that of its cluster."""
    try:
        ids = stored_ids(data_dir)
    except ClusterFolderError as error:
        raise MigrationError(str(error)) from None
    if ids is not None:
        raise MigrationError(f"{data_dir} is the folder of {len(ids)} brokers already ({LAYOUT_FILE})")
    try:
        meta = read_meta(disk, data_dir)
        node_id = int(meta["node.id"])
    except (FileNotFoundError, NotADirectoryError):
        raise MigrationError(
            f"{data_dir} is not the folder of a node: it has no {META_PROPERTIES}; name the folder of `headwater up` "
            "with --data"
        ) from None
    except ValueError:
        raise MigrationError(f"{data_dir}: node.id in {META_PROPERTIES} is no number; restore the file") from None
    except LogDirError as error:
        raise MigrationError(str(error)) from None
    except OSError as error:
        raise MigrationError(f"{data_dir}: {error.strerror}; check the path and its permissions") from None
    if not disk.exists(os.path.join(data_dir, METADATA_DIRECTORY)):
        raise MigrationError(
            f"{data_dir} has no {METADATA_DIRECTORY}: its broker belongs to a cluster already, or it is not the first "
            "of log.dirs"
        )
    return node_id, meta["cluster.id"]


def _check_single_folder(disk: Disk, data_dir: str) -> None:
    known = read_known_directories(disk, data_dir)
    if len(known) > 1:
        raise MigrationError(
            f"{data_dir} is one of {len(known)} log folders (log.dirs: {', '.join(sorted(known))}); only a node with "
            "one folder can be migrated. Move all replicas to it with kafka-reassign-partitions.sh, stop the node, and "
            f"remove {os.path.join(data_dir, KNOWN_DIRECTORIES)}"
        )


def _check_links(data_dir: str) -> None:
    """Check that the broker's files are also there after a move: links from their folder to elsewhere are not."""
    with os.scandir(data_dir) as entries:
        links = sorted(entry.name for entry in entries if entry.is_symlink())
    for name in links:
        path = os.path.join(data_dir, name)
        is_own = is_broker_folder(name) or _is_file_name(name)
        if is_own and not (os.path.isabs(os.readlink(path)) and os.path.exists(path)):
            raise MigrationError(
                f"{path} is a link to {os.readlink(path)}, which would lead nowhere once it is moved; make it a link "
                "with an absolute path to what is there, or put that in its place"
            )


def _read_metadata(disk: Disk, data_dir: str, node_id: int) -> CarriedNodes:
    try:
        return carry_nodes(read_local_nodes(disk, os.path.join(data_dir, METADATA_DIRECTORY)), node_id)
    except EarlierMetadataError as error:
        raise MigrationError(
            f"{data_dir} is of an earlier version ({error}): start the node once with this version (`headwater up "
            f"--data {data_dir}`), stop it, and migrate it then"
        ) from None
    except OtherBrokerError as error:
        raise MigrationError(f"{data_dir} is not the folder of one node: {error}") from None
    except CorruptNodeError as error:
        raise MigrationError(f"{data_dir}: {error}; {error.remedy}") from None
    except (MetadataStoreError, UnsupportedFeaturesError) as error:
        raise MigrationError(str(error)) from None


def _folder_bytes(disk: Disk, path: str) -> int:
    return sum(entry.size_bytes for entry in disk.listdir(path) if not entry.is_directory)
