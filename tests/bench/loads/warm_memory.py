"""Makes free memory as fast as memory that is in use: `python -m tests.bench.loads.warm_memory GIB`.

A virtual machine that reports its free pages to the host loses them: the next one to touch such a page waits for the
host to find it a new one, ten times as long as copying a page takes. Whoever writes into the page cache pays for it, by
chance. Pages that were touched and freed a moment ago are still there.
"""

from __future__ import annotations

import mmap
import sys


def touch(gibibytes: int) -> None:
    """Writes to every page of so much memory and gives it back."""
    size = gibibytes << 30
    with mmap.mmap(-1, size) as memory:
        for position in range(0, size, mmap.PAGESIZE):
            memory[position] = 1


if __name__ == "__main__":
    touch(int(sys.argv[1]))
