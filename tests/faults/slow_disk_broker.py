"""`headwater` with a disk that can be made slow: while a file is there, each write and each sync waits.

The first argument is that file, the others are the command line. Without it the disk is as fast as it is.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

from headwater.cli.main import main
from headwater.logtier.runtime.disk import RealDisk, RealFile

#: As of a device with a full queue. A write waits on the event loop, as it does when the kernel makes a writer wait for
#: its dirty pages.
WRITE_S = 0.05
SYNC_S = 1.0


def slow_down(disk_class: type, name: str, seconds: float, control: Path) -> None:
    """Let a method of a class wait before it begins, while the file exists."""
    method: Callable[..., Any] = getattr(disk_class, name)

    @wraps(method)
    def slow(*arguments: Any, **named: Any) -> Any:
        if control.exists():
            time.sleep(seconds)
        return method(*arguments, **named)

    setattr(disk_class, name, slow)


if __name__ == "__main__":
    slow_down(RealFile, "append", WRITE_S, Path(sys.argv[1]))
    slow_down(RealFile, "fsync", SYNC_S, Path(sys.argv[1]))
    slow_down(RealDisk, "write_atomic", SYNC_S, Path(sys.argv[1]))
    slow_down(RealDisk, "fsync_directory", SYNC_S, Path(sys.argv[1]))
    sys.exit(main(sys.argv[2:]))
