"""Follows log files into a topic: the log-aggregation use case.

Each line becomes one message. Positions are kept on disk and move only behind what the brokers have acknowledged: after
a crash what was not noted is sent again (at least once), and nothing is left out. Files are known by device and inode,
so that one that gets another name goes on under it. One that loses its name is followed until it has not grown for a
while, and read to its end before the one that took its place.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from headwater.followed_file import FileId, FollowedFile
from headwater.named_files import FilePatterns, Folder, one_name_each
from headwater.shipped_positions import KnownFile, load_positions, save_positions

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message, Producer

logger = logging.getLogger(__name__)

SCAN_S: Final = 1.0
"""How often names are looked up again: new files, rotated files."""
IDLE_S: Final = 0.1
SAVE_S: Final = 1.0
GRACE_S: Final = 60.0
"""How long a file without a name must not have grown until it counts as finished: after a rename the writer goes on in
it until it is told to open the new one, seconds later, and what it holds in a buffer comes later still."""
LOOK_S: Final = 3600.0
"""How often the folders of files that are followed no more are read, to forget those that are gone."""
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


class _Followed:
    """One file: which of its lines are under way, in their order, and whether it still grows.

    Invariant: `offset` is behind the last line before which all are acknowledged.
    """

    def __init__(self, file: FollowedFile, after: _Followed | None) -> None:
        self.file = file
        self.offset = file.position
        #: What had its name before, until that has been read to its end.
        self.after = after
        #: Its last turn handed out all that it had.
        self.is_at_end = False
        #: It has no name any more, has been quiet for long and was read to its end.
        self.is_done = False
        self._under_way: deque[_Sent] = deque()
        self._cuts = 0
        self._quiet_since_s: float | None = None
        self._seen_bytes = 0

    @property
    def is_empty(self) -> bool:
        return not self._under_way

    def sent(self, end: int) -> _Sent:
        """A line that ends there is under way."""
        if self._cuts != self.file.cuts:
            # Lines under way are of what was cut away: their ends say nothing about what the file holds now.
            self._cuts = self.file.cuts
            self.offset = 0
            self._under_way.clear()
        sent = _Sent(end)
        self._under_way.append(sent)
        return sent

    def acknowledged(self, sent: _Sent) -> None:
        """It has arrived."""
        sent.has_arrived = True
        while self._under_way and self._under_way[0].has_arrived:
            self.offset = self._under_way.popleft().end

    def named(self, path: str) -> None:
        """It has this name now."""
        self.file.path = path
        self.is_done = False
        self._quiet_since_s = None

    def nameless(self, now_s: float) -> None:
        """No name leads to it any more; whoever has it open may still write to it."""
        size = self.file.size
        if self._quiet_since_s is None or size != self._seen_bytes:
            self._quiet_since_s, self._seen_bytes = now_s, size
            self.is_done = False

    def is_finished(self, now_s: float) -> bool:
        """Whether nobody can be expected to write to it."""
        is_quiet = self._quiet_since_s is not None and now_s >= self._quiet_since_s + GRACE_S
        return is_quiet and self.file.size == self._seen_bytes


class Shipper:
    """Sends what is appended to files, until it is stopped.

    Args:
        patterns: As of `FilePatterns`, looked up again and again.
        positions_path: The file of positions.
        from_end: Begin a file that is not known at its end.
        line_bytes_max: Longer lines are sent in pieces of this size.
        is_to_end: Stop at the end of all files instead of following them.
        files_max: How many files to have open at a time.
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
        files_max: int = FILES_MAX,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.shipped = 0
        self._producer = producer
        self._topic = topic
        self._patterns = FilePatterns(patterns)
        self._positions_path = positions_path
        self._from_end = from_end
        self._line_bytes_max = line_bytes_max
        self._is_to_end = is_to_end
        self._files_max = files_max
        self._monotonic_s = monotonic_s
        self._known = load_positions(positions_path)
        self._saved = dict(self._known)
        self._known_paths = {known.path for known in self._known.values()}
        #: In the order in which they were opened: what had a name before comes before what has it now.
        self._files: dict[FileId, _Followed] = {}
        self._failure: str | None = None
        self._host = socket.gethostname().encode()
        self._stopping = False
        self._refused: set[str] = set()
        self._is_over_limit = False
        self._scan_due_s = self._look_due_s = self._save_due_s = monotonic_s()

    def stop(self) -> None:
        """Make `run` return soon; may be called from a signal handler."""
        self._stopping = True

    def run(self) -> None:
        """Ship until stopped, or to the end of all files.

        Raises:
            ShipperError: the brokers refused a line, or the positions cannot be written.
        """
        try:
            while not self._stopping and self._failure is None:
                self._keep_up()
                sent = self._turn()
                self._producer.poll(0)
                self._let_go()
                if not sent:
                    if self._is_to_end:
                        break
                    self._producer.poll(IDLE_S)
            self._finish()
        finally:
            for followed in self._files.values():
                followed.file.close()

    def _keep_up(self) -> None:
        """What must not wait, however long the brokers are away: a file that nobody has open can be removed unread."""
        now_s = self._monotonic_s()
        if now_s >= self._scan_due_s:
            self._scan(now_s)
            self._scan_due_s = now_s + SCAN_S
        if now_s >= self._save_due_s:
            self._save()
            self._save_due_s = now_s + SAVE_S

    def _scan(self, now_s: float) -> None:
        """Look names up: files that got another one, that lost theirs, that are new."""
        files = self._patterns.files()
        names = one_name_each(files)
        predecessors = {followed.file.path: followed for followed in self._files.values()}
        for file_id, followed in self._files.items():
            if files.get(followed.file.path) == file_id:
                followed.named(followed.file.path)
            elif file_id in names:
                followed.named(names[file_id])
            else:
                followed.nameless(now_s)
        if now_s >= self._look_due_s:
            self._look_for_missing(names, predecessors, now_s)
            self._look_due_s = now_s + LOOK_S
        for file_id, path in names.items():
            if file_id not in self._files and len(self._files) < self._files_max:
                self._open(path, file_id, predecessors.get(path))
        if len(names) > self._files_max and not self._is_over_limit:
            logger.warning("%d files match; %d are followed, the others are not", len(names), self._files_max)
        self._is_over_limit = len(names) > self._files_max
        # Whatever appears from now on is new: all of it counts.
        self._from_end = False

    def _open(self, path: str, file_id: FileId, after: _Followed | None) -> None:
        known = self._known.get(file_id)
        try:
            # What was done and is written to since may be a new file with the inode of one that was removed.
            if known is not None and known.done_ns not in (None, os.stat(path).st_mtime_ns):
                known = None
            position = None if known is None else known.position
            # What took the name of a file that is known came after it: all of it counts.
            from_end = self._from_end and known is None and path not in self._known_paths
            file = FollowedFile.open(path, position, self._line_bytes_max, from_end=from_end)
        except OSError as error:
            if path not in self._refused:
                self._refused.add(path)
                logger.warning("%s cannot be read: %s", path, error.strerror)
            return
        self._refused.discard(path)
        if file.file_id != file_id:
            # Its name was taken by another one since it was looked up: the next scan sees both.
            file.close()
            return
        if known is not None and known.done_ns is None and not file.is_the_one(known.position):
            logger.warning("%s was cut or replaced while it was not followed: what was not sent of it is lost", path)
        self._files[file_id] = _Followed(file, after)

    def _look_for_missing(self, names: Mapping[FileId, str], predecessors: dict[str, _Followed], now_s: float) -> None:
        """Files that are known but have no name that is looked up: rotated while nobody followed them, or gone."""
        folders: dict[str, Folder | None] = {}
        for file_id, known in list(self._known.items()):
            if file_id in self._files or file_id in names:
                continue
            name = os.path.dirname(known.path)
            if name not in folders:
                folders[name] = Folder.read(name)
            if (folder := folders[name]) is None:
                continue
            path = folder.paths.get(known.position.inode)
            if path is not None:
                has_room = len(self._files) < self._files_max
                is_wanted = has_room and known.done_ns is None and self._patterns.match(known.path)
                is_there = not is_wanted or self._follow_rotated(path, known, predecessors, now_s)
            else:
                # A folder on another device may be where a disk is mounted later.
                is_there = folder.device != known.position.device
            if not is_there:
                del self._known[file_id]
                if known.done_ns is None:
                    logger.warning("%s is gone since it was last followed: what was not sent of it is lost", known.path)

    def _follow_rotated(self, path: str, known: KnownFile, predecessors: dict[str, _Followed], now_s: float) -> bool:
        """Send the rest of a file that lost its name while nobody followed it; false if it is another file."""
        try:
            file = FollowedFile.open(path, known.position, self._line_bytes_max, from_end=False)
        except OSError as error:
            logger.warning("%s, once %s, cannot be read: %s", path, known.path, error.strerror)
            return True
        if not file.is_the_one(known.position):
            file.close()
            return False
        # Its lines are those of the name that it had.
        file.path = known.path
        followed = _Followed(file, predecessors.get(known.path))
        followed.nameless(now_s)
        self._files[file.file_id] = predecessors[known.path] = followed
        return True

    def _turn(self) -> int:
        """Send of each file what it has, up to a turn's worth; how many lines."""
        count = 0
        for followed in list(self._files.values()):
            if followed.is_done or (followed.after is not None and not followed.after.is_at_end):
                continue
            followed.after = None
            count += self._ship(followed)
        return count

    def _ship(self, followed: _Followed) -> int:
        is_finished = followed.is_finished(self._monotonic_s())
        count = 0
        for line in followed.file.lines(is_complete=is_finished or self._is_to_end):
            self._send(followed, line.text, line.end)
            count += 1
            if count == LINES_PER_TURN or self._failure is not None:
                break
        followed.is_at_end = count < LINES_PER_TURN
        # While lines waited for room it may have grown or got a name again.
        followed.is_done = is_finished and followed.is_at_end and followed.is_finished(self._monotonic_s())
        return count

    def _let_go(self) -> None:
        """Of files that are done, once their last line is acknowledged."""
        for file_id, followed in list(self._files.items()):
            if not (followed.is_done and followed.is_empty):
                continue
            self._note(followed)
            if followed.file.is_removed:
                del self._known[file_id]
            followed.file.close()
            del self._files[file_id]

    def _send(self, followed: _Followed, text: bytes, end: int) -> None:
        from confluent_kafka import KafkaException

        # One partition for the lines of one file, hence in their order.
        key = os.fsencode(followed.file.path)
        headers: Any = [("file", key), ("host", self._host)]
        sent = followed.sent(end)

        def delivered(error: KafkaError | None, _: Message) -> None:
            if error is None:
                self.shipped += 1
                followed.acknowledged(sent)
            elif self._failure is None:
                self._failure = f"a line of {followed.file.path} was not taken by topic {self._topic!r}: {error.str()}"

        while self._failure is None and not self._stopping:
            try:
                self._producer.produce(self._topic, text, key, headers=headers, on_delivery=delivered)
            except BufferError:
                self._producer.poll(IDLE_S)
                self._keep_up()
            except KafkaException as error:
                reason = error.args[0].str()
                self._failure = f"a line of {followed.file.path} was refused by topic {self._topic!r}: {reason}"
            else:
                return

    def _note(self, followed: _Followed) -> None:
        file = followed.file
        done_ns = file.modified_ns if followed.is_done and followed.is_empty else None
        self._known[file.file_id] = KnownFile(file.path, file.position_at(followed.offset), done_ns)

    def _save(self) -> None:
        for followed in self._files.values():
            self._note(followed)
        if self._known != self._saved:
            try:
                save_positions(self._positions_path, self._known.values())
            except OSError as error:
                raise ShipperError(f"{self._positions_path} cannot be written: {error.strerror}") from error
            self._saved = dict(self._known)

    def _finish(self) -> None:
        """Wait for what is under way and note it."""
        if self._failure is None:
            self._producer.flush(FLUSH_S)
        self._save()
        if self._failure is not None:
            raise ShipperError(self._failure)
