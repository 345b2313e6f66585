"""What the readers of a topic must find, for records that are acknowledged beside transactions."""

from __future__ import annotations

import threading
from pathlib import Path

Record = tuple[int, int, str]


class Claims:
    """Writes the claims that `unified_checker.py` reads. Threads may call it.

    Readers of committed records see no record behind an open transaction: an acknowledged record is due when the
    transaction that was open is complete. A producer whose next transaction has a record, or that was initialised
    anew, proves that: its coordinator begins no transaction before the markers of the last one are written.
    """

    def __init__(self, path: Path) -> None:
        path.touch()
        self._path = path
        self._lock = threading.Lock()
        self._new: list[Record] = []
        self._before: list[Record] = []
        self.due = 0

    def acknowledged(self, partition: int, offset: int, value: str) -> None:
        """A record was acknowledged, or the transaction that it is in was committed."""
        with self._lock:
            self._new.append((partition, offset, value))

    def begins(self) -> None:
        """The next transaction will begin: what is acknowledged by now is before its records."""
        with self._lock:
            self._before += self._new
            self._new = []

    def completed(self) -> None:
        """The transactions before the one that began last are complete."""
        with self._lock:
            if self._before:
                self._write("".join(f"due {partition} {offset} {value}\n" for partition, offset, value in self._before))
                self.due += len(self._before)
                self._before = []

    def aborts(self, value: str) -> None:
        """The record of this value will be in a transaction that is not committed; say so before it is sent."""
        with self._lock:
            self._write(f"aborted {value}\n")

    def _write(self, text: str) -> None:
        with self._path.open("a") as file:
            file.write(text)
