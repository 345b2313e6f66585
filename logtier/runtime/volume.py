"""Volumes (mounted file systems): size, free space, and a sync of the whole file system."""

import ctypes
import os
import platform
import re
from functools import cache
from typing import Final, Protocol

# syncfs(2) reports write errors since this version of Linux; earlier versions always succeed.
_SYNCFS_REPORTS_ERRORS_SINCE: Final = (5, 8)


class Volume(Protocol):
    """The mounted file system of a folder, held open by a descriptor."""

    @property
    def total_bytes(self) -> int:
        """Size of the file system."""

    @property
    def usable_bytes(self) -> int:
        """Free bytes."""

    def sync(self) -> bool:
        """Wait until all files of the file system are on the device.

        Returns:
            False if the system has no such call, or does not report its failure.

        Raises:
            OSError: Data written since the creation of this object did not reach the device.
        """

    def close(self) -> None:
        """Release the file system."""


class RealVolume:
    """The file system of a folder on this machine. The open descriptor makes the kernel retain write errors."""

    def __init__(self, path: str) -> None:
        self._descriptor = -1
        self._descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    @property
    def total_bytes(self) -> int:
        """Size of the file system, as Java's getTotalSpace."""
        status = os.fstatvfs(self._descriptor)
        return status.f_blocks * status.f_frsize

    @property
    def usable_bytes(self) -> int:
        """Free bytes for a process without privileges, as Java's getUsableSpace."""
        status = os.fstatvfs(self._descriptor)
        return status.f_bavail * status.f_frsize

    def sync(self) -> bool:
        """Call syncfs(2) if it reports failures."""
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
