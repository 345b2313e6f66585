"""A lock on a folder, for as long as a process of this machine uses it."""

from __future__ import annotations

import fcntl
import os
from typing import Final

LOCK: Final = ".lock"


class FolderInUseError(RuntimeError):
    """Another process uses the folder; the message is one line for the user."""


def lock_folder(folder: str) -> int:
    """Lock an existing folder; return the descriptor that holds the lock until it is closed everywhere.

    Raises:
        FolderInUseError: Another process holds the lock.
        OSError: The folder is not there, or not writable.
    """
    descriptor = os.open(os.path.join(folder, LOCK), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise FolderInUseError(f"{folder} is in use by another process; stop it, or name another folder") from None
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor
