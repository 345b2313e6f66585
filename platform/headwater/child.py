"""The child's end of the supervisor's pipes: report ready or failed, and notice that the parent is gone.

A child gets two inherited descriptors. On the *ready* pipe it writes one JSON line, `{"ready": {...}}` with the
addresses it bound or `{"error": "one line", "exit_code": 1}`. The *parent* pipe is held open by the supervisor:
end-of-file on it means that the supervisor no longer exists, even after kill -9, and the child stops too. The
supervisor may write one JSON line on it.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
from collections.abc import Mapping
from typing import Any

LINE_BYTES_MAX = 65_536
"""Longest line on either pipe, for addresses and one-line messages."""

ORPHAN_GRACE_S = 20.0
"""Time for a clean stop of an orphan before it exits by force."""


class ParentLink:
    """A child process's link to its supervisor. Both descriptors are None if a user started the process."""

    def __init__(self, ready_fd: int | None, parent_fd: int | None) -> None:
        self._ready_fd = ready_fd
        self._parent_fd = parent_fd
        if self.supervised:
            # Ctrl-C in a terminal reaches the whole process group; the supervisor alone decides the order of stopping.
            signal.signal(signal.SIGINT, signal.SIG_IGN)

    @property
    def supervised(self) -> bool:
        """Whether a supervisor started this process."""
        return self._ready_fd is not None

    def report_ready(self, addresses: Mapping[str, Any]) -> None:
        """Report to the supervisor the addresses on which this process listens."""
        self._report({"ready": dict(addresses)})

    def report_error(self, message: str, exit_code: int) -> None:
        """Report to the supervisor, in one line, why this process cannot start, and the code it will exit with."""
        self._report({"error": message, "exit_code": exit_code})

    def receive(self) -> dict[str, Any]:
        """Wait for the supervisor's line; ends the process if the supervisor exits first."""
        assert self._parent_fd is not None
        line = bytearray()
        while not line.endswith(b"\n"):
            # Byte by byte: what follows the line belongs to `watch`. It is one short line in a process's life.
            piece = os.read(self._parent_fd, 1)
            if not piece or len(line) > LINE_BYTES_MAX:
                raise SystemExit(1)
            line += piece
        message = json.loads(line)
        assert isinstance(message, dict)
        return message

    def watch(self) -> None:
        """End this process from now on when the supervisor exits: SIGTERM for a clean stop, then a forced exit."""
        if self._parent_fd is not None:
            threading.Thread(target=self._end_with_parent, name="parent-watch", daemon=True).start()

    def _end_with_parent(self) -> None:
        assert self._parent_fd is not None
        while os.read(self._parent_fd, 1024):
            pass
        os.kill(os.getpid(), signal.SIGTERM)
        threading.Event().wait(ORPHAN_GRACE_S)
        os._exit(1)

    def _report(self, message: Mapping[str, Any]) -> None:
        if self._ready_fd is None:
            return
        with contextlib.suppress(BrokenPipeError):  # the supervisor is gone; `watch` ends this process
            os.write(self._ready_fd, json.dumps(message).encode()[: LINE_BYTES_MAX - 1] + b"\n")
