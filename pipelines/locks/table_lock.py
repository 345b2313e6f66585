"""The lock of a Delta table on a local disk: the kernel's, for the moment of a commit.

Delta's commit renames a file, and on a local disk nothing keeps two processes from the same name: Delta guards that
rename within one JVM only.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager

from headwater.pipelines.file_systems.local import local_path

__all__ = ["table_lock"]


@contextmanager
def table_lock(path: str) -> Iterator[None]:
    """Hold the lock of a table; without effect for a table elsewhere. Waits for another holder. Raises OSError."""
    folder = local_path(path)
    if not os.path.isabs(folder):
        yield
        return
    hidden = os.path.join(folder, "_headwater")
    os.makedirs(hidden, exist_ok=True)
    descriptor = os.open(os.path.join(hidden, "lock"), os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
