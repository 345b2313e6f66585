"""The data folder of a cluster on one machine: the brokers that it is for, and whether they may start."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterator, Sequence
from typing import Final

from headwater.migration_journal import (
    UNFINISHED,
    JournalError,
    MigrationJournal,
    MigrationStage,
    encode_journal,
    journal_path,
    read_journal,
)
from headwater.services import NodeStartError

#: A broker for each core of a large machine.
BROKERS_MAX: Final = 64
#: Written before the first process starts: which cluster a folder is for.
LAYOUT_FILE: Final = "cluster.properties"
#: Written before the layout, and there until all brokers have been ready once: no user has data in the folder.
NEW_FILE: Final = "cluster.new"
#: What a node without a cluster keeps in its folder.
ONE_NODE_FILES: Final = ("meta.properties", "__cluster_metadata")
#: Folder of the ZooKeeper's data, and the file that it knows the brokers' login from.
ZOOKEEPER_FOLDER: Final = "zookeeper"
JAAS_FILE: Final = "zookeeper.jaas"


class ClusterFolderError(NodeStartError):
    """The data folder cannot be used, such as one for another number of brokers."""


def broker_folder(broker_id: int) -> str:
    """Name of the folder of a broker's logs."""
    return f"broker-{broker_id}"


def first_ids(brokers: int) -> tuple[int, ...]:
    """Return the ids of the brokers of a new folder.

    >>> first_ids(3)
    (1, 2, 3)
    """
    return tuple(range(1, brokers + 1))


def encode_layout(ids: Sequence[int]) -> str:
    r"""Return the contents of the layout file; ids of brokers other than 1 to N are in a line of their own.

    >>> encode_layout((1, 2, 3)), encode_layout((7, 1, 2))
    ('brokers=3\n', 'brokers=3\nids=7,1,2\n')
    """
    line = f"brokers={len(ids)}\n"
    return line if tuple(ids) == first_ids(len(ids)) else f"{line}ids={','.join(map(str, ids))}\n"


def decode_layout(text: str) -> tuple[int, ...] | None:
    r"""Return the ids of the brokers in the order of their ports, None for a damaged layout.

    >>> decode_layout("brokers=3\n"), decode_layout("brokers=3\nids=7,1,2\n"), decode_layout("brokers=3\nids=7,7,2\n")
    ((1, 2, 3), (7, 1, 2), None)
    """
    first, *rest = text.strip().split("\n")
    name, _, value = first.partition("=")
    if name != "brokers" or not value.isdecimal() or not 2 <= int(value) <= BROKERS_MAX or len(rest) > 1:
        return None
    ids = first_ids(int(value))
    if rest:
        name, _, value = rest[0].partition("=")
        listed = value.split(",")
        if name != "ids" or len(listed) != len(ids) or not all(each.isdecimal() for each in listed):
            return None
        ids = tuple(map(int, listed))
    return ids if len(set(ids)) == len(ids) else None


def stored_ids(data_dir: str) -> tuple[int, ...] | None:
    """Return the ids of the brokers of a cluster's folder, None for every other folder; ClusterFolderError."""
    path = os.path.join(data_dir, LAYOUT_FILE)
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read(1024)
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise ClusterFolderError(f"{path} cannot be read: {error}") from None
    ids = decode_layout(text)
    if ids is None:
        raise ClusterFolderError(f"{path} is damaged: it must be one line such as brokers=3")
    return ids


def broker_ids(data_dir: str, brokers: int) -> tuple[int, ...]:
    """Return the ids of the brokers of a folder that is checked, in the order of their ports; ClusterFolderError."""
    return stored_ids(data_dir) or first_ids(brokers)


def stored_brokers(data_dir: str) -> int | None:
    """Return the number of brokers that a folder is for; None for an empty or missing one, 1 for that of a node.

    Raises:
        ClusterFolderError: The file that says it is damaged.
    """
    ids = stored_ids(data_dir)
    if ids is not None:
        return len(ids)
    return 1 if any(os.path.exists(os.path.join(data_dir, name)) for name in ONE_NODE_FILES) else None


@contextlib.contextmanager
def writing(path: str) -> Iterator[None]:
    """Report an error of the disk with the path that could not be written; ClusterFolderError."""
    try:
        yield
    except OSError as error:
        raise ClusterFolderError(f"{path}: {error.strerror}; check the path and its permissions") from None


def write_secret(path: str, text: str) -> None:
    """Write or replace a file that only this user may read; OSError."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    with open(os.open(path + ".tmp", flags, 0o600), "w", encoding="utf-8") as file:
        os.fchmod(file.fileno(), 0o600)
        file.write(text)
    os.replace(path + ".tmp", path)


def check_folder(data_dir: str, brokers: int) -> None:
    """Check that a folder is empty or for this number of brokers.

    Raises:
        ClusterFolderError: It is for another number, or between one node and a cluster.
    """
    _check_not_between(data_dir)
    stored = stored_brokers(data_dir)
    if stored is None or stored == brokers:
        return
    if stored == 1:
        raise ClusterFolderError(
            f"{data_dir} is the folder of one node without replicas: start it without --brokers, make it that of a "
            f"cluster with `headwater cluster migrate --data {data_dir}`, or name another folder with --data"
        )
    raise ClusterFolderError(
        f"{data_dir} is the folder of {stored} brokers: start it with --brokers {stored}, or name another folder with "
        "--data"
    )


def _check_not_between(data_dir: str) -> None:
    journal = read_folder_journal(data_dir)
    if journal is not None and journal.stage in UNFINISHED:
        command = f"headwater cluster migrate --data {data_dir}"
        continued = "" if journal.stage is MigrationStage.RETURNING else f"`{command}` continues it, and "
        raise ClusterFolderError(
            f"{data_dir}: its migration to a cluster is unfinished: {continued}`{command} --back` makes it the folder "
            "of one node again"
        )


def read_folder_journal(data_dir: str) -> MigrationJournal | None:
    """Return the journal of a folder's migration, None without one; ClusterFolderError."""
    try:
        return read_journal(data_dir)
    except JournalError as error:
        raise ClusterFolderError(str(error)) from None


def prepare_folder(data_dir: str, brokers: int) -> bool:
    """Write the layout of a new folder; return whether its brokers were never ready together.

    Raises:
        ClusterFolderError: As `check_folder`, or the folder cannot be written.
    """
    check_folder(data_dir, brokers)
    new_path = os.path.join(data_dir, NEW_FILE)
    if stored_brokers(data_dir) is not None:
        return os.path.exists(new_path)
    with writing(data_dir):
        with open(new_path, "w", encoding="utf-8"):
            _sync_folder(data_dir)
        _write_durably(os.path.join(data_dir, LAYOUT_FILE), encode_layout(first_ids(brokers)).encode())
    return True


def note_start(data_dir: str) -> None:
    """Note that brokers are about to write: a migrated folder cannot become that of one node again.

    Raises:
        ClusterFolderError: The note cannot be written; no broker must start.
    """
    journal = read_folder_journal(data_dir)
    if journal is not None and journal.stage is MigrationStage.MIGRATED:
        with writing(data_dir):
            started = dataclasses.replace(journal, stage=MigrationStage.STARTED)
            _write_durably(journal_path(data_dir), encode_journal(started))


def end_newness(data_dir: str) -> None:
    """Note that all brokers were ready; a full or read-only disk only leaves the folder a new one."""
    with contextlib.suppress(OSError):
        os.remove(os.path.join(data_dir, NEW_FILE))
        _sync_folder(data_dir)


def _write_durably(path: str, data: bytes) -> None:
    with open(path + ".tmp", "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(path + ".tmp", path)
    _sync_folder(os.path.dirname(path))


def _sync_folder(folder: str) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
