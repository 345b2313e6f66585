"""A whole file system: how large it is, and everything on it brought to the device at once."""

import ctypes
import os
import platform
import re
from functools import cache
from typing import Final, Protocol

# Since this Linux syncfs(2) reports what could not be written; before, it succeeds whatever happened.
_SYNCFS_REPORTS_ERRORS_SINCE: Final = (5, 8)


class FileSystem(Protocol):
    """The file system of a folder, held open."""

    @property
    def total_bytes(self) -> int:
        """Its size."""

    @property
    def usable_bytes(self) -> int:
        """Bytes that can still be written to it."""

    def sync(self) -> bool:
        """Wait until everything on it is on the device; False where that cannot be had or its failure not be told.

        OSError when something written since this object was made did not reach the device.
        """

    def close(self) -> None:
        """Let go of it."""


class RealFileSystem:
    """The file system of a folder of this machine; the open descriptor makes the kernel keep failures for us."""

    def __init__(self, path: str) -> None:
        self._descriptor = -1
        self._descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    @property
    def total_bytes(self) -> int:
        """Its size, as Java's getTotalSpace has it."""
        status = os.fstatvfs(self._descriptor)
        return status.f_blocks * status.f_frsize

    @property
    def usable_bytes(self) -> int:
        """What a process without privileges can still write, as Java's getUsableSpace has it."""
        status = os.fstatvfs(self._descriptor)
        return status.f_bavail * status.f_frsize

    def sync(self) -> bool:
        """syncfs(2), where it reports failures."""
        libc = _libc_with_syncfs()
        if libc is None:
            return False
        if libc.syncfs(self._descriptor) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        return True

    def close(self) -> None:
        """Close the descriptor; closing twice is allowed."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __del__(self) -> None:
        self.close()


@cache
def _libc_with_syncfs() -> "ctypes.CDLL | None":
    release = re.match(r"(\d+)\.(\d+)", platform.release())
    if platform.system() != "Linux" or release is None:
        return None
    if (int(release[1]), int(release[2])) < _SYNCFS_REPORTS_ERRORS_SINCE:
        return None
    libc = ctypes.CDLL(None, use_errno=True)
    return libc if hasattr(libc, "syncfs") else None
