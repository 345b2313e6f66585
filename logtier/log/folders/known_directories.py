"""Records the id of each log folder by path, so that an unmounted disk is not mistaken for an empty log folder."""

import logging
from collections.abc import Mapping

from headwater.logtier.log.folders.log_directory import KNOWN_DIRECTORIES
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
    return {pair[1]: pair[0] for pair in pairs if len(pair) == 2}


def write_known_directories(disk: Disk, directory: str, known: Mapping[str, str]) -> None:
    """Replace the file."""
    content = "".join(f"{directory_id} {path}\n" for path, directory_id in known.items())
    disk.write_atomic(f"{directory}/{KNOWN_DIRECTORIES}", content.encode())
