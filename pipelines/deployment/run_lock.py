"""The lock of a pipeline's state folder: one run at a time. The kernel releases it when its process ends.

`<state>/<pipeline>/lock` holds the process id of the run that has, or last had, the lock; the run is alive only if the
lock is held, too.
"""

from __future__ import annotations

import fcntl
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from headwater.pipelines.errors import PipelineBusy

__all__ = ["UNKNOWN_PROCESS", "ask_to_stop", "hold", "holder", "is_holder"]

#: A run is alive with an unknown process: the run has only just begun, or runs in another container.
UNKNOWN_PROCESS: Final = 0
# A check for a live run holds the lock for a moment. A run that begins just then retries.
_ATTEMPTS: Final = 5
_ATTEMPT_S: Final = 0.05


@contextmanager
def hold(folder: str) -> Iterator[None]:
    """Hold the state folder's lock; creates the folder if missing. Raises PipelineBusy with the holder's process."""
    path = os.path.join(folder, "lock")
    try:
        os.makedirs(folder, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise PipelineBusy(
            f"the state folder {folder} cannot be used: {error.strerror}; give another with --state"
        ) from None
    try:
        if not _locked(descriptor):
            raise PipelineBusy(
                f"the state folder {folder} belongs to a run that is still alive "
                f"(process {_written(descriptor) or 'unknown'}); "
                "wait for it, stop it, or give another folder with --state"
            )
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)


def _locked(descriptor: int) -> bool:
    for attempt in range(_ATTEMPTS):
        if attempt:
            time.sleep(_ATTEMPT_S)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            continue
        return True
    return False


def holder(folder: str) -> int | None:
    """The process of the live run; UNKNOWN_PROCESS if it cannot be determined, None without a live run."""
    try:
        descriptor = os.open(os.path.join(folder, "lock"), os.O_RDONLY)
    except OSError:
        return None
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            process = _written(descriptor)
            return process if process and is_holder(folder, process) else UNKNOWN_PROCESS
        return None
    finally:
        os.close(descriptor)


def is_holder(folder: str, process: int) -> bool:
    """Whether a process has the lock's file open: the id in the file may be a former run's, reused by the system."""
    path = os.path.join(folder, "lock")
    descriptors = Path("/proc", str(process), "fd")
    try:
        wanted = os.stat(path)
        if not os.path.isdir("/proc/self/fd"):
            os.kill(process, 0)  # no /proc on this system: a live process of that id counts as the holder
            return True
        for entry in descriptors.iterdir():
            try:
                found = entry.stat()
            except OSError:
                continue
            if (found.st_dev, found.st_ino) == (wanted.st_dev, wanted.st_ino):
                return True
    except OSError:
        return False
    return False


def ask_to_stop(folder: str, process: int) -> bool:
    """Send SIGTERM to the run that holds the lock, and to no other process; False if it no longer holds the lock."""
    if not hasattr(os, "pidfd_open"):
        if not is_holder(folder, process):
            return False
        os.kill(process, signal.SIGTERM)
        return True
    try:
        descriptor = os.pidfd_open(process)
    except ProcessLookupError:
        return False
    try:
        # From here on the descriptor denotes one process, even if its id is reused.
        if not is_holder(folder, process):
            return False
        signal.pidfd_send_signal(descriptor, signal.SIGTERM)
    except ProcessLookupError:
        return False
    finally:
        os.close(descriptor)
    return True


def _written(descriptor: int) -> int:
    """The process id in the lock's file, 0 without one."""
    text = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip()
    return int(text) if text.isdecimal() and text.isascii() else 0
