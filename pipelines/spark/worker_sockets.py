"""Unix domain sockets between the JVM of a local Spark session and its Python workers.

Over TCP, a ready worker waits some 36 ms for its first rows, about as long as a delayed acknowledgement takes: half of
a small micro-batch's task (docs/benchmarks_spark.md). Unix domain sockets avoid this wait.

Spark does not authenticate connections to such a socket, so the sockets are in a folder that only this user may enter.
"""

from __future__ import annotations

import os
from tempfile import TemporaryDirectory
from typing import Final

__all__ = ["FOLDER_CONF", "SOCKETS_CONF", "remove_socket_folders", "socket_conf", "socket_folder"]

SOCKETS_CONF: Final = "spark.python.unix.domain.socket.enabled"
FOLDER_CONF: Final = "spark.python.unix.domain.socket.dir"

# Limit of a socket's path on all systems (macOS 103 bytes, Linux 107), minus the length of Spark's file name.
_FOLDER_BYTES_MAX: Final = 103 - len("/.00000000-0000-0000-0000-000000000000.sock")

_folders: list[TemporaryDirectory[str]] = []


def socket_conf(folder: str) -> dict[str, str]:
    """Spark's settings for sockets in a folder; empty, which means TCP, if the path is too long for a socket.

    >>> sorted(socket_conf("/var/headwater-x").values())
    ['/var/headwater-x', 'true']
    >>> socket_conf("/var/" + "x" * 60)
    {}
    """
    if len(os.fsencode(folder)) > _FOLDER_BYTES_MAX:
        return {}
    return {SOCKETS_CONF: "true", FOLDER_CONF: folder}


def socket_folder() -> str:
    """A new folder that only this user may enter; `remove_socket_folders`, or the end of this process, removes it."""
    folder = TemporaryDirectory(prefix="headwater-", ignore_cleanup_errors=True)
    _folders.append(folder)
    return folder.name


def remove_socket_folders() -> None:
    """Remove the folders from `socket_folder`. Like Spark's temporary files, they remain if this process is killed."""
    while _folders:
        _folders.pop().cleanup()
