"""The lock of an archive's table on a local disk, where nothing else keeps the commits of two processes apart."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from headwater.pipelines.archive.errors import ArchiveFailed
from headwater.pipelines.locks.table_lock import table_lock

__all__ = ["commit_lock"]

WAIT_S_MAX: Final = 60.0


@contextmanager
def commit_lock(table: str, is_stopped: Callable[[], bool] = lambda: False) -> Iterator[None]:
    """Hold the lock. Raises ArchiveFailed if another process holds it for a minute: it may be frozen."""
    deadline_s = time.monotonic() + WAIT_S_MAX

    def waits(path: str) -> None:
        if is_stopped() or time.monotonic() > deadline_s:
            raise ArchiveFailed(f"another process holds the lock of the table {path}: nothing was committed")

    with table_lock(table, waits):
        yield
