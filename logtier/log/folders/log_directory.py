"""One folder of `log.dirs`: its identity, its lock, and how the last broker stopped."""

import os
import random
from collections.abc import Callable, Iterable
from typing import Final

import orjson

from headwater.logtier.log.directory_health import DirectoryHealth
from headwater.logtier.protocol.uuids import random_uuid, to_text
from headwater.logtier.runtime.disk import Disk, Lock
from headwater.logtier.runtime.durable_folder import make_durable_folder
from headwater.logtier.runtime.volume import Volume

META_PROPERTIES: Final = "meta.properties"
CLEAN_SHUTDOWN: Final = ".kafka_cleanshutdown"
LOCK: Final = ".lock"
KNOWN_DIRECTORIES: Final = "known-log-directories"
_META_VERSION: Final = "1"


class LogDirError(OSError):
    """A log folder cannot be used; one line for the user: which folder, the reason, and the remedy."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class LogDirectoryFailedError(LogDirError):
    """The disk of a log folder failed; the broker may continue with the other folders."""


class LogDirectory:
    """A locked log folder with its health.

    Files: `.lock` (held while the broker runs), `meta.properties` (version, cluster.id, node.id, directory.id, in
    Kafka's format), `.kafka_cleanshutdown` (present only between a clean stop and the next start). Only the log manager
    uses it.
    """

    def __init__(self, disk: Disk, path: str, on_failure: Callable[["LogDirectory"], None] | None = None) -> None:
        """`on_failure` is called once, when the folder goes offline."""
        self._disk = disk
        self.path = path
        self.health = DirectoryHealth(
            path,
            is_present=lambda: disk.exists(f"{path}/{META_PROPERTIES}"),
            on_failure=None if on_failure is None else lambda: on_failure(self),
        )
        self.volume: Volume | None = None
        self.cluster_id = ""
        self.directory_id = ""
        self.was_stopped_cleanly = False
        #: The broker epoch in which the folder was closed cleanly, -1 if it was not, or by a single node (KIP-966).
        self.closed_in_epoch = -1
        self._lock: Lock | None = None

    @property
    def identity(self) -> str:
        """The id and the path of the folder: a copy of it has another path."""
        return f"{self.directory_id} {os.path.abspath(self.path)}"

    @property
    def is_online(self) -> bool:
        """Whether the logs of the folder can be used."""
        return self.health.failure is None

    def open(
        self, *, node_id: int, cluster_id: str | None, prng: random.Random, known_directory_id: str | None = None
    ) -> None:
        """Create the folder if needed, lock it, check or write `meta.properties`, and remove the clean-stop marker.

        Args:
            known_directory_id: Directory id at this path during the last run; None if the path is new.

        Raises:
            LogDirError: The folder cannot be used.
        """
        try:
            if known_directory_id is not None and not self._disk.exists(f"{self.path}/{META_PROPERTIES}"):
                raise LogDirectoryFailedError(
                    f"log folder {self.path}: its logs are missing; check that its disk is mounted. To start with an "
                    f"empty folder, remove its line from {KNOWN_DIRECTORIES} in the first of log.dirs"
                )
            make_durable_folder(self._disk, self.path)
            self._lock = self._disk.lock(f"{self.path}/{LOCK}")
            self._open_meta(node_id, cluster_id, prng)
            if known_directory_id not in (None, self.directory_id):
                raise LogDirectoryFailedError(
                    f"log folder {self.path}: its directory.id is {self.directory_id}, another one than at the last "
                    f"start; if that is intended, remove its line from {KNOWN_DIRECTORIES} in the first of log.dirs"
                )
            self.volume = self._disk.volume(self.path)
            marker = f"{self.path}/{CLEAN_SHUTDOWN}"
            self.was_stopped_cleanly = self._disk.exists(marker)
            if self.was_stopped_cleanly:
                self.closed_in_epoch = _broker_epoch(self._disk.read(marker))
                # Removed durably before any write: otherwise a later crash would look like a clean stop.
                self._disk.remove(marker)
                self._disk.fsync_directory(self.path)
        except LogDirError:
            self.release()
            raise
        except (FileExistsError, NotADirectoryError):
            raise LogDirError(
                f"log folder {self.path}: it, or a folder above it, is a file; name a folder in log.dirs"
            ) from None
        except BlockingIOError:
            raise LogDirError(
                f"log folder {self.path}: another broker uses it; stop that broker, or name another folder in log.dirs"
            ) from None
        except OSError as error:
            self.release()
            reason = os.strerror(error.errno) if error.errno else str(error)
            raise LogDirectoryFailedError(
                f"log folder {self.path}: cannot be used: {reason}; make it writable, or name another folder in "
                "log.dirs"
            ) from None

    def mark_stopped_cleanly(self, broker_epoch: int) -> None:
        """Write the marker with which the next start skips recovery."""
        self._disk.write_atomic(f"{self.path}/{CLEAN_SHUTDOWN}", b'{"version":0,"brokerEpoch":%d}' % broker_epoch)

    def release(self) -> None:
        """Unlock the folder for the next broker."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None
        if self.volume is not None:
            self.volume.close()
            self.volume = None

    def _open_meta(self, node_id: int, cluster_id: str | None, prng: random.Random) -> None:
        path = f"{self.path}/{META_PROPERTIES}"
        try:
            meta = read_meta(self._disk, self.path)
        except FileNotFoundError:
            self.cluster_id = cluster_id or to_text(random_uuid(prng))
            self.directory_id = to_text(random_uuid(prng))
            lines = [
                f"version={_META_VERSION}",
                f"cluster.id={self.cluster_id}",
                f"node.id={node_id}",
                f"directory.id={self.directory_id}",
            ]
            self._disk.write_atomic(path, ("\n".join(lines) + "\n").encode())
            return
        if meta["node.id"] != str(node_id):
            raise LogDirError(
                f"log folder {self.path}: it belongs to node {meta['node.id']}, but node.id is {node_id}; set node.id "
                f"to {meta['node.id']}, or name another folder in log.dirs"
            )
        if cluster_id is not None and meta["cluster.id"] != cluster_id:
            raise LogDirError(
                f"log folder {self.path}: it belongs to cluster {meta['cluster.id']}, not to {cluster_id}; set "
                "zookeeper.connect to that of its cluster, or name another folder in log.dirs"
            )
        self.cluster_id = meta["cluster.id"]
        self.directory_id = meta["directory.id"]


def stored_cluster_ids(disk: Disk, folders: Iterable[str]) -> dict[str, str]:
    """Return the cluster id of each log folder that has been used, before any of them is locked.

    A folder that cannot be read counts as new: its broker may do without it.

    Raises:
        LogDirError: A `meta.properties` is damaged.
    """
    found = {}
    for folder in folders:
        try:
            found[folder] = read_meta(disk, folder)["cluster.id"]
        except LogDirError:
            raise
        except OSError:
            continue
    return found


def read_meta(disk: Disk, folder: str) -> dict[str, str]:
    """Return the properties of a log folder; FileNotFoundError, LogDirError."""
    meta = _parse_properties(disk.read(f"{folder}/{META_PROPERTIES}"))
    for name in ("version", "cluster.id", "node.id", "directory.id"):
        if not meta.get(name):
            raise LogDirError(
                f"log folder {folder}: {META_PROPERTIES} is damaged: {name} is missing; restore the file from a backup"
            )
    if meta["version"] != _META_VERSION:
        raise LogDirError(
            f"log folder {folder}: {META_PROPERTIES} has version {meta['version']}, supported is {_META_VERSION}; use "
            "the release that wrote it"
        )
    return meta


def _broker_epoch(marker: bytes) -> int:
    """Return the broker epoch of a clean-stop marker, -1 without one.

    >>> _broker_epoch(b'{"version":0,"brokerEpoch":7}'), _broker_epoch(b"")
    (7, -1)
    """
    try:
        epoch = orjson.loads(marker)["brokerEpoch"]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return -1
    return epoch if isinstance(epoch, int) else -1


def _parse_properties(data: bytes) -> dict[str, str]:
    """Parse `name=value` lines; other lines are ignored.

    >>> _parse_properties(b"# written by a broker\\nversion=1\\nnode.id = 7\\n")
    {'version': '1', 'node.id': '7'}
    """
    found: dict[str, str] = {}
    for line in data.decode(errors="replace").splitlines():
        name, separator, value = line.partition("=")
        if separator and not line.startswith("#"):
            found[name.strip()] = value.strip()
    return found
