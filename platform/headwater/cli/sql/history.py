"""The shell's history: a file that only its user can read, in the folder for state."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

from prompt_toolkit.history import FileHistory, History, InMemoryHistory

from headwater.pipelines.definition.secret_text import SECRET_NAME

__all__ = ["history_at", "history_path"]

HISTORY_BYTES_MAX: Final = 1 << 20
HISTORY_BYTES_KEPT: Final = HISTORY_BYTES_MAX // 2
MODE: Final = 0o600
FOLDER_MODE: Final = 0o700


class _WithoutSecrets(FileHistory):
    """Keeps statements that seem to hold a secret for the session only."""

    def store_string(self, string: str) -> None:
        """Append a statement to the file."""
        if not SECRET_NAME.search(string):
            super().store_string(string)


def history_path(environment: Mapping[str, str]) -> str:
    """The history's file, by the XDG base directories.

    >>> history_path({"XDG_STATE_HOME": "/s"}), history_path({"HOME": "/users/ada"})
    ('/s/headwater/sql_history', '/users/ada/.local/state/headwater/sql_history')
    """
    base = environment.get("XDG_STATE_HOME") or os.path.join(environment.get("HOME", "."), ".local", "state")
    return os.path.join(base, "headwater", "sql_history")


def history_at(path: str) -> tuple[History, str]:
    """Open the history; and why it is kept for this session only, '' if it is in the file."""
    try:
        os.makedirs(os.path.dirname(path), mode=FOLDER_MODE, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, MODE)
        try:
            os.fchmod(descriptor, MODE)
            if os.fstat(descriptor).st_size > HISTORY_BYTES_MAX:
                _shorten(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        return InMemoryHistory(), f"{path}: {error.strerror}; the history ends with the shell"
    return _WithoutSecrets(path), ""


def _shorten(descriptor: int) -> None:
    """Keep the latest entries: each begins with a blank line and a comment."""
    os.lseek(descriptor, -HISTORY_BYTES_KEPT, os.SEEK_END)
    data = b""
    while part := os.read(descriptor, HISTORY_BYTES_KEPT):
        data += part
    start = data.find(b"\n\n# ")
    os.ftruncate(descriptor, 0)
    os.write(descriptor, data[start + 1 :] if start >= 0 else b"")
