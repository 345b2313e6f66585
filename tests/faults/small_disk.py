"""A file system of a fixed size in memory, which can be filled: for it, tests need root."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from pathlib import Path

_BLOCK = bytes(1 << 20)


def can_mount() -> bool:
    """Whether this user may mount a file system; others see no full disks."""
    return os.geteuid() == 0 and shutil.which("mount") is not None


class SmallDisk:
    """A mounted file system below a folder. Invariant: after `unmount` nothing is left of it.

    Attributes:
        folder: Where it is mounted.
    """

    def __init__(self, folder: Path, size_bytes: int) -> None:
        self.folder = folder
        self._size_bytes = size_bytes
        self._filler = folder / "filler"
        self._is_mounted = False

    def mount(self) -> bool:
        """Mount it, unless the machine refuses that, also to root."""
        self.folder.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", f"size={self._size_bytes}", "tmpfs", str(self.folder)]
        self._is_mounted = subprocess.run(command, check=False, capture_output=True).returncode == 0
        return self._is_mounted

    def fill(self) -> None:
        """Write until there is no room for a byte."""
        with self._filler.open("ab", buffering=0) as file:
            size = len(_BLOCK)
            while size:
                try:
                    file.write(_BLOCK[:size])
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
                    size //= 2

    def make_room(self) -> None:
        self._filler.unlink(missing_ok=True)

    def unmount(self) -> None:
        if self._is_mounted:
            subprocess.run(["umount", "-l", str(self.folder)], check=True)
            self._is_mounted = False
