"""The lock of an archive's table on a local disk, where nothing else keeps the commits of two processes apart."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from headwater.pipelines.archive.errors import ArchiveFailed
from headwater.pipelines.locks.table_lock import table_lock

__all__ = ["commit_lock"]

log = logging.getLogger(__name__)

#: A wait that is longer is said: a commit of another process takes a moment, OPTIMIZE and VACUUM may take an hour.
SAID_S: Final = 10.0
SAID_AGAIN_S: Final = 600.0


@contextmanager
def commit_lock(
    table: str,
    is_stopped: Callable[[], bool] = lambda: False,
    wait_s: float = math.inf,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[None]:
    """Hold the lock, once no other process holds it: the kernel gives back that of one that has ended.

    Raises ArchiveFailed when `is_stopped`, or after `wait_s` seconds.
    """
    began_s = clock()
    said_s = SAID_S

    def waits(path: str) -> None:
        nonlocal said_s
        waited_s = clock() - began_s
        if is_stopped() or waited_s > wait_s:
            raise ArchiveFailed(f"another process holds the lock of the table {path}: nothing was committed")
        if waited_s >= said_s:
            said_s = waited_s + SAID_AGAIN_S
            log.warning(
                "another process holds the lock of the table %s, by a long statement of headwater sql or by headwater "
                "archive maintain? The next commit to it waits for the end",
                path,
            )

    with table_lock(table, waits):
        yield
