"""The lock of a Delta table on a local disk: the kernel's, for the moment of a commit.

Delta's commit renames a file, and on a local disk nothing keeps two processes from the same name: Delta guards that
rename within one JVM only.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from headwater.pipelines.file_systems.local import local_path

__all__ = ["table_lock"]

_RETRY_S: Final = 0.05


@contextmanager
def table_lock(path: str, waits: Callable[[str], None] | None = None) -> Iterator[None]:
    """Hold the lock of a table; without effect for a table elsewhere. Raises OSError.

    While another holds it, `waits` is called with the path every 50 ms; what it raises ends the wait.
    """
    folder = local_path(path)
    if not os.path.isabs(folder):
        yield
        return
    hidden = os.path.join(folder, "_headwater")
    os.makedirs(hidden, exist_ok=True)
    descriptor = os.open(os.path.join(hidden, "lock"), os.O_RDWR | os.O_CREAT, 0o644)
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if waits is not None:
                    waits(path)
                time.sleep(_RETRY_S)
            else:
                break
        yield
    finally:
        os.close(descriptor)
