"""Creates a folder whose name survives a power loss."""

import contextlib
import os

from headwater.logtier.runtime.disk import Disk


def make_durable_folder(disk: Disk, path: str) -> None:
    """Create a folder and its missing parents, and sync each folder that got a new entry (KAFKA-3968).

    A parent that may not be opened is not synced: its owner has to see to it.

    Raises:
        OSError: The folder cannot be created or synced.
    """
    missing = []
    at = path
    while at and not disk.exists(at):
        missing.append(at)
        at = os.path.dirname(at)
    disk.makedirs(path)
    for each in missing:
        with contextlib.suppress(PermissionError):
            disk.fsync_directory(os.path.dirname(each) or os.curdir)
