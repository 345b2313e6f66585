"""Who holds a lock: told to those who find it held, and enough to know that a holder of this machine is dead. Pure but
for `Owner.here` and `is_dead`, which ask the operating system.
"""

from __future__ import annotations

import json
import os
import socket
import time
from dataclasses import asdict, dataclass
from pathlib import Path

__all__ = ["Owner"]

_TEXT_MAX = 200


@dataclass(frozen=True, slots=True)
class Owner:
    """A process that holds a lock, or wants it.

    Attributes:
        what: Its work, as people call it: `load evening of flights`.
        since: Start of the work, in seconds since 1970.
        boot: Identifies the machine, from its start on, and the container: '' where the system does not tell.
        started: The process's start by the kernel's clock: a later process with the same id has another.
    """

    what: str
    host: str
    process: int
    since: float
    boot: str = ""
    started: str = ""

    @classmethod
    def here(cls, what: str) -> Owner:
        """This process."""
        return cls(what[:_TEXT_MAX], socket.gethostname(), os.getpid(), time.time(), _boot(), _started(os.getpid()))

    def encode(self) -> bytes:
        """The form in which the group's coordinator keeps it."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def decode(cls, data: bytes) -> Owner | None:
        """The owner in a member's metadata; None if it is not of this form."""
        try:
            found = json.loads(data)
            return cls(
                str(found["what"])[:_TEXT_MAX],
                str(found["host"])[:_TEXT_MAX],
                int(found["process"]),
                float(found["since"]),
                str(found["boot"]),
                str(found["started"]),
            )
        except (ValueError, KeyError, TypeError):
            return None

    @property
    def is_dead(self) -> bool:
        """Whether the process ran on this machine and has ended. False where that is not known."""
        return bool(self.boot and self.started) and self.boot == _boot() and _started(self.process) != self.started

    def __str__(self) -> str:
        """The owner in a message.

        >>> str(Owner("load of flights", "worker-3", 4711, 1385894400.0))
        'load of flights (machine worker-3, process 4711, since 2013-12-01T10:40:00Z)'
        """
        since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self.since))
        return f"{self.what} (machine {self.host}, process {self.process}, since {since})"


def _boot() -> str:
    """The id of the machine's last start with that of the namespace in which its processes are numbered."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
        return f"{boot}/{os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        return ""


def _started(process: int) -> str:
    """A process's start in the kernel's clock ticks (proc(5), stat, field 22); '' if there is no such process."""
    try:
        text = Path(f"/proc/{process}/stat").read_text("ascii", errors="replace")
    except OSError:
        return ""
    fields = text.rpartition(")")[2].split()
    # The first of these is field 3, the state: a zombie has ended.
    return "" if fields[0] in "ZX" else fields[19]
