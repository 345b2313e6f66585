"""Follows log files into a topic: the log-aggregation use case.

Each line becomes one message. Positions are kept on disk and move only behind what the brokers have acknowledged: after
a crash what was not noted is sent again (at least once), and nothing is left out. A rotated file is read to its end
before the one that took its place.
"""

from __future__ import annotations

import contextlib
import glob
import logging
import os
import socket
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from headwater.followed_file import FilePosition, FollowedFile
from headwater.shipped_positions import load_positions, save_positions

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message, Producer

logger = logging.getLogger(__name__)

SCAN_S: Final = 1.0
"""How often names are looked up again: new files, rotated files."""
IDLE_S: Final = 0.1
SAVE_S: Final = 1.0
FLUSH_S: Final = 10.0
"""How long the end waits for what is under way; what is not acknowledged by then is sent again the next time."""
FILES_MAX: Final = 10_000
LINES_PER_TURN: Final = 5_000
"""Sent of one file before the others have their turn."""


class ShipperError(RuntimeError):
    """Shipping cannot go on; the message is one line."""


class _Sent:
    """One line under way."""

    __slots__ = ("end", "has_arrived")

    def __init__(self, end: int) -> None:
        self.end = end
        self.has_arrived = False


class _Acknowledged:
    """The lines of one file that are under way, in their order.

    Invariant: `offset` is behind the last line before which all are acknowledged.
    """

    def __init__(self, file: FollowedFile) -> None:
        self.file = file
        self.offset = file.position
        self._under_way: deque[_Sent] = deque()

    @property
    def is_empty(self) -> bool:
        return not self._under_way

    def sent(self, end: int) -> _Sent:
        """A line that ends there is under way."""
        sent = _Sent(end)
        self._under_way.append(sent)
        return sent

    def acknowledged(self, sent: _Sent) -> None:
        """It has arrived."""
        sent.has_arrived = True
        while self._under_way and self._under_way[0].has_arrived:
            self.offset = self._under_way.popleft().end


class Shipper:
    """Sends what is appended to files, until it is stopped.

    Args:
        patterns: Paths, or patterns of the shell (`*`, `?`, `[...]`, `**`), looked up again and again.
        positions_path: The file of positions.
        from_end: Begin a file that is not known at its end.
        line_bytes_max: Longer lines are sent in pieces of this size.
        is_to_end: Stop at the end of all files instead of following them.
    """

    def __init__(
        self,
        producer: Producer,
        topic: str,
        patterns: Sequence[str],
        positions_path: str,
        *,
        from_end: bool = False,
        line_bytes_max: int = 1_000_000,
        is_to_end: bool = False,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.shipped = 0
        self._producer = producer
        self._topic = topic
        self._patterns = [os.path.abspath(pattern) for pattern in patterns]
        self._positions_path = positions_path
        self._from_end = from_end
        self._line_bytes_max = line_bytes_max
        self._is_to_end = is_to_end
        self._monotonic_s = monotonic_s
        self._positions = load_positions(positions_path)
        self._saved = dict(self._positions)
        self._files: dict[str, _Acknowledged] = {}
        #: Files that were rotated away, until their last line is acknowledged.
        self._leaving: list[_Acknowledged] = []
        self._failure: str | None = None
        self._host = socket.gethostname().encode()
        self._stopping = False
        self._refused: set[str] = set()
        self._opened: set[str] = set()
        self._is_over_limit = False

    def stop(self) -> None:
        """Make `run` return soon; may be called from a signal handler."""
        self._stopping = True

    def run(self) -> None:
        """Ship until stopped, or to the end of all files.

        Raises:
            ShipperError: the brokers refused a line, or the positions cannot be written.
        """
        scan_due_s = save_due_s = self._monotonic_s()
        while not self._stopping and self._failure is None:
            now_s = self._monotonic_s()
            if now_s >= scan_due_s:
                self._scan()
                scan_due_s = now_s + SCAN_S
            sent = sum(self._ship(file) for file in list(self._files.values()))
            self._producer.poll(0)
            if now_s >= save_due_s:
                self._save()
                save_due_s = now_s + SAVE_S
            if not sent:
                if self._is_to_end:
                    break
                self._producer.poll(IDLE_S)
        self._finish()

    def _scan(self) -> None:
        """Open what appeared; follow a rename to the end of the file before the next one of its name."""
        present: dict[str, None] = {}
        for pattern in self._patterns:
            for path in sorted(glob.glob(pattern, recursive=True)) if glob.has_magic(pattern) else [pattern]:
                present[path] = None
        for path in [path for path, file in self._files.items() if not file.file.is_at(path)]:
            self._let_go(path)
        for path in present:
            if path not in self._files and len(self._files) < FILES_MAX:
                self._open(path)
        if len(present) > FILES_MAX and not self._is_over_limit:
            logger.warning("%d files match; %d are followed, the others are not", len(present), FILES_MAX)
        self._is_over_limit = len(present) > FILES_MAX
        # Whatever appears from now on is new: all of it counts.
        self._from_end = False

    def _open(self, path: str) -> None:
        if not os.path.isfile(path):
            return
        # Later on, whatever takes a name is new: what had it before is being read to its end.
        known = None if path in self._opened else self._positions.get(path)
        try:
            file = FollowedFile.open(
                path, known, self._line_bytes_max, from_end=self._from_end and path not in self._positions
            )
        except OSError as error:
            if path not in self._refused:
                self._refused.add(path)
                logger.warning("%s cannot be read: %s", path, error.strerror)
            return
        self._refused.discard(path)
        if known is not None and not file.is_the_one(known):
            self._finish_rotated(path, known)
        self._opened.add(path)
        self._files[path] = _Acknowledged(file)

    def _finish_rotated(self, path: str, known: FilePosition) -> None:
        """The file was rotated while nobody followed it: look for it under its new name, and send its rest first."""
        folder = os.path.dirname(path)
        with contextlib.suppress(OSError), os.scandir(folder) as entries:
            for entry in entries:
                if entry.inode() != known.inode or not entry.is_file():
                    continue
                rotated = FollowedFile.open(entry.path, known, self._line_bytes_max, from_end=False)
                if not rotated.is_the_one(known):
                    rotated.close()
                    continue
                # Its lines are those of the name that it had.
                rotated.path = path
                self._send_rest(_Acknowledged(rotated))
                return
        logger.warning("%s was rotated while it was not followed, and is gone: what was not sent of it is lost", path)

    def _let_go(self, path: str) -> None:
        """A file was renamed or removed: read it to its end, then its name is free for the next one."""
        self._send_rest(self._files.pop(path))

    def _send_rest(self, leaving: _Acknowledged) -> None:
        while self._failure is None and not self._stopping and self._ship(leaving, is_complete=True):
            pass
        self._leaving.append(leaving)

    def _ship(self, shipped: _Acknowledged, *, is_complete: bool = False) -> int:
        """Send what a file has, up to a turn's worth; how many lines."""
        count = 0
        for line in shipped.file.lines(is_complete=is_complete or self._is_to_end):
            self._send(shipped, line.text, line.end)
            count += 1
            if count == LINES_PER_TURN or self._failure is not None:
                break
        return count

    def _send(self, shipped: _Acknowledged, text: bytes, end: int) -> None:
        from confluent_kafka import KafkaException

        headers: Any = [("file", shipped.file.path.encode()), ("host", self._host)]
        sent = shipped.sent(end)

        def delivered(error: KafkaError | None, _: Message) -> None:
            if error is None:
                self.shipped += 1
                shipped.acknowledged(sent)
            elif self._failure is None:
                self._failure = f"a line of {shipped.file.path} was not taken by topic {self._topic!r}: {error.str()}"

        while self._failure is None and not self._stopping:
            try:
                # One partition for the lines of one file, hence in their order.
                key = shipped.file.path.encode()
                self._producer.produce(self._topic, text, key, headers=headers, on_delivery=delivered)
            except BufferError:
                self._producer.poll(IDLE_S)
            except KafkaException as error:
                reason = error.args[0].str()
                self._failure = f"a line of {shipped.file.path} was refused by topic {self._topic!r}: {reason}"
            else:
                return

    def _save(self) -> None:
        for path, shipped in self._files.items():
            self._positions[path] = shipped.file.position_at(shipped.offset)
        for shipped in [shipped for shipped in self._leaving if shipped.is_empty]:
            shipped.file.close()
            self._leaving.remove(shipped)
        # While a rotated file has lines under way, its name keeps the old position: after a crash they are sent again.
        for shipped in self._leaving:
            self._positions[shipped.file.path] = shipped.file.position_at(shipped.offset)
        if self._positions != self._saved:
            try:
                save_positions(self._positions_path, self._positions)
            except OSError as error:
                raise ShipperError(f"{self._positions_path} cannot be written: {error.strerror}") from error
            self._saved = dict(self._positions)

    def _finish(self) -> None:
        """Wait for what is under way, note it, let go of the files."""
        if self._failure is None:
            self._producer.flush(FLUSH_S)
        self._save()
        for shipped in (*self._files.values(), *self._leaving):
            shipped.file.close()
        if self._failure is not None:
            raise ShipperError(self._failure)
