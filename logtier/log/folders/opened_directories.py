"""Opens the folders of `log.dirs`, and keeps the id of each by path: an unmounted disk is no empty log folder."""

import logging
import random
from collections.abc import Callable, Mapping

from headwater.logtier.config import BrokerConfig
from headwater.logtier.log.folders.log_directory import KNOWN_DIRECTORIES, LogDirectory, LogDirectoryFailedError
from headwater.logtier.runtime.disk import Disk

logger = logging.getLogger(__name__)


def read_known_directories(disk: Disk, directory: str) -> dict[str, str]:
    """Return directory ids by path; the file is in the first log folder, text, `<directory id> <path>` a line."""
    path = f"{directory}/{KNOWN_DIRECTORIES}"
    try:
        lines = disk.read(path).decode().splitlines()
    except FileNotFoundError:
        return {}
    except ValueError as error:
        logger.warning("%s is damaged and is written again: %s", path, error)
        return {}
    pairs = (line.split(" ", 1) for line in lines)
    return {pair[1]: pair[0] for pair in pairs if len(pair) == 2 and pair[0]}


def write_known_directories(disk: Disk, directory: str, known: Mapping[str, str]) -> None:
    """Replace the file."""
    content = "".join(f"{directory_id} {path}\n" for path, directory_id in known.items())
    disk.write_atomic(f"{directory}/{KNOWN_DIRECTORIES}", content.encode())


def open_directories(
    disk: Disk,
    config: BrokerConfig,
    prng: random.Random,
    cluster_id: str | None,
    directories: list[LogDirectory],
    on_failure: Callable[[LogDirectory], None],
) -> str:
    """Lock the folders of `log.dirs`; return the cluster id. A folder with a disk error is offline, but the first.

    Args:
        cluster_id: Cluster that the folders must belong to; None accepts that of the folders, or creates a new one.
        directories: Receives the folders one by one: whoever calls releases them, also after an error.

    Raises:
        LogDirError: A folder cannot be used.
    """
    known: dict[str, str] = {}
    for path in config.log_dirs:
        directory = LogDirectory(disk, path, on_failure)
        directories.append(directory)
        try:
            directory.open(node_id=config.node_id, cluster_id=cluster_id, prng=prng, known_directory_id=known.get(path))
        except LogDirectoryFailedError as error:
            if len(directories) == 1:
                raise
            directory.health.fail(str(error))
            # Another disk at this path is refused at the next start, too.
            directory.directory_id = known.get(path) or directory.directory_id
            continue
        cluster_id = directory.cluster_id
        if len(directories) == 1:
            known = read_known_directories(disk, path)
    if len(directories) > 1:
        # One that could never be opened is new next time.
        now_known = {each.path: each.directory_id for each in directories if each.directory_id}
        if now_known != known:
            write_known_directories(disk, directories[0].path, now_known)
    return cluster_id or ""
