"""Follows log files into a topic: the log-aggregation use case.

Each line becomes one message. Positions are stored on disk and advance only past acknowledged lines: after a crash,
lines behind the stored position are sent again (at least once), and no line is skipped. Device and inode identify a
file, so a renamed file continues under its new name. A file that loses its name is followed until it stops growing for
a while, and is read to its end before its replacement. One bad file or line never blocks the others.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Callable, Mapping
from typing import Final

from headwater.shipping.file_changes import FileId, FileStatus, OpenFile, make_room
from headwater.shipping.file_patterns import FilePatterns, Folder, NamedFile, one_name_each
from headwater.shipping.followed_file import FilePosition, FollowedFile, Line
from headwater.shipping.growing_pause import GrowingPause
from headwater.shipping.line_sender import LineSender, LineVerdict
from headwater.shipping.shipped_file import Sent, ShippedFile
from headwater.shipping.shipped_positions import KnownFile, load_positions, save_positions
from headwater.shipping.summary import MISTAKES_MAX, Summary

logger = logging.getLogger(__name__)

SCAN_S: Final = 1.0
"""Interval between look-ups of names: new files, rotated files, idle files that were written to."""
SCAN_MAX_S: Final = 30.0
SAVE_S: Final = 1.0
UPKEEP_SHARE: Final = 0.02
"""Share of a core for look-ups of names, and the same for saving: with thousands of files, both are less frequent."""
IDLE_S: Final = 0.1
AWAKE_S: Final = 10.0
"""Time for which a grown file is read in every turn; afterwards a scan of names detects its growth."""
LOOK_S: Final = 3600.0
"""Interval between reads of the folders of files no longer followed, to forget deleted files."""
FLUSH_S: Final = 10.0
"""Time for lines in flight at the end; lines not acknowledged by then are sent again by the next run."""
PATIENCE_S: Final = 60.0
"""How long `is_to_end` waits for unreachable brokers since the last acknowledged line."""
REFUSED_PATIENCE_S: Final = 10.0
"""The same for brokers that answer but refuse."""
REPORT_FIRST_S: Final = 5.0
REPORT_MAX_S: Final = 600.0
RETRY_MAX_S: Final = 60.0
STARVED_S: Final = 30.0
STARVED_NS: Final = 1 << 63
"""A file that waits for this long is opened before all others, whatever its time of modification."""
FILES_MAX: Final = 10_000
"""Maximum number of open files; the number of followed files is unlimited."""
LINES_PER_TURN: Final = 5_000
"""Lines of one file sent before other files have their turn."""


class Shipper:
    """Sends data appended to files until stopped.

    Invariants: all lines before a file's stored position are acknowledged or refused, and the position belongs to the
    fingerprint stored with it. A file that is not open (parked) had no unsent data when it was closed.

    Args:
        patterns: Patterns of the files, looked up periodically.
        positions_path: The file of positions.
        from_end: Start unknown files that exist at the start at their ends.
        line_bytes_max: Longer lines are sent in pieces of this size, or of the topic's limit.
        is_to_end: Stop at the end of all files instead of following.
        files_max: Maximum number of open files.
    """

    def __init__(
        self,
        sender: LineSender,
        patterns: FilePatterns,
        positions_path: str,
        *,
        from_end: bool = False,
        line_bytes_max: int = 1_000_000,
        is_to_end: bool = False,
        files_max: int = FILES_MAX,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.summary = Summary()
        self._sender = sender
        self._patterns = patterns
        self._positions_path = positions_path
        self._from_end = from_end
        self._line_bytes_max = line_bytes_max
        self._is_to_end = is_to_end
        self._files_max = files_max
        self._monotonic_s = monotonic_s
        self._known = load_positions(positions_path)
        self._known_paths = {known.path for known in self._known.values()}
        #: In the order in which they were opened: what had a name before comes before what has it now.
        self._files: dict[FileId, ShippedFile] = {}
        #: Those that may have something to send, or have lost their names; of the others a scan tells.
        self._awake: dict[FileId, ShippedFile] = {}
        #: Files that are closed, as they were then.
        self._parked: dict[FileId, FileStatus] = {}
        self._unsaved: set[FileId] = set()
        #: Those of which lines were sent, until all of them are dealt with and that is saved.
        self._sending: set[FileId] = set()
        self._host = socket.gethostname().encode()
        self._stopping = self._hurrying = False
        #: Files, patterns and what was said of them: once until it changes.
        self._told: dict[str, str] = {}
        self._compressed: dict[FileId, FileStatus] = {}
        #: Files that have something to send and no room, and since when.
        self._waiting: dict[FileId, float] = {}
        now_s = monotonic_s()
        self._scan_due_s = self._look_due_s = self._save_due_s = self._progress_s = now_s
        self._report_pause = GrowingPause(REPORT_FIRST_S, REPORT_MAX_S)
        self._report_pause.begin(now_s)
        self._save_pause = GrowingPause(SAVE_S, RETRY_MAX_S)
        self._arrived = 0
        self._cursor = 0

    def stop(self) -> None:
        """Make `run` return soon, or at once on a second call; may be called from a signal handler."""
        self._hurrying = self._stopping
        self._stopping = True

    def run(self) -> Summary:
        """Ship until stopped, or to the end of all files; returns the summary."""
        try:
            while not self._stopping:
                self._keep_up()
                sent = self._turn()
                self._sender.poll(0)
                self._let_go()
                self._watch_progress()
                if self._is_to_end and self._is_over():
                    break
                if not sent:
                    self._sender.poll(IDLE_S)
            self._finish()
        finally:
            for followed in self._files.values():
                followed.file.close()
        return self.summary

    def _keep_up(self) -> None:
        """Scan and save when due, also while the brokers are unreachable: an unopened file can be removed unread."""
        if (now_s := self._monotonic_s()) >= self._scan_due_s:
            began_s = time.thread_time()
            self._scan(now_s)
            cost_s = time.thread_time() - began_s
            self._scan_due_s = now_s + min(SCAN_MAX_S, max(SCAN_S, cost_s / UPKEEP_SHARE))
        if now_s >= self._save_due_s and self._save_pause.is_over(now_s):
            began_s = time.thread_time()
            self._save()
            self._save_due_s = now_s + max(SAVE_S, (time.thread_time() - began_s) / UPKEEP_SHARE)

    def _scan(self, now_s: float) -> None:
        """Look up all names, and find renamed, nameless, new and modified files."""
        files = self._patterns.files()
        names = one_name_each(files)
        predecessors = {followed.file.path: followed for followed in self._files.values()}
        for file_id, followed in list(self._files.items()):
            path = followed.file.path
            current = path if path in files and files[path].file_id == file_id else names.get(file_id)
            if current is None:
                followed.nameless(now_s)
                self._wake(followed, now_s)
            else:
                if current != path:
                    self._unsaved.add(file_id)
                followed.named(current)
                if files[current].status.is_news(followed.file.seen):
                    self._wake(followed, now_s)
        self._tell_mistakes(files)
        if self._from_end:
            self._begin_at_ends(files, names)
        # Whatever appears from now on is new: all of it counts.
        self._from_end = False
        if lost := [file_id for file_id in self._parked if file_id not in names]:
            for file_id in lost:
                del self._parked[file_id]
            self._look_due_s = now_s
        if now_s >= self._look_due_s:
            self._look_for_missing(names, predecessors, now_s)
            self._look_due_s = now_s + LOOK_S
        self._open_wanted(files, names, predecessors, now_s)

    def _tell_mistakes(self, files: Mapping[str, NamedFile]) -> None:
        # Only where a pattern may have no file at all: looking for it costs as much as the scan did.
        mistakes = self._patterns.mistakes() if len(files) < MISTAKES_MAX or not self._told else {}
        for pattern, sentence in mistakes.items():
            self._tell(pattern, sentence)
            if self._is_to_end:
                self.summary.unread[pattern] = sentence

    def _tell(self, subject: str, sentence: str) -> None:
        """Log a sentence about a subject, unless it was the last sentence about that subject."""
        if self._told.get(subject) != sentence:
            self._told[subject] = sentence
            logger.warning("%s", sentence)

    def _begin_at_ends(self, files: Mapping[str, NamedFile], names: Mapping[FileId, str]) -> None:
        """Record the ends of unknown files; a file that took a known file's name is new and starts at the beginning."""
        for file_id, path in names.items():
            if file_id not in self._known and path not in self._known_paths:
                position = FilePosition(*file_id, files[path].status.size, fingerprint=0, fingerprint_bytes=0)
                self._known[file_id] = KnownFile(path, position)
                self._unsaved.add(file_id)

    def _open_wanted(
        self,
        files: Mapping[str, NamedFile],
        names: Mapping[FileId, str],
        predecessors: Mapping[str, ShippedFile],
        now_s: float,
    ) -> None:
        """Open files with unsent data, newest writes first; close idle files if there is no other room."""
        wanted = {}
        for file_id, path in names.items():
            if file_id in self._files:
                continue
            status = files[path].status
            seen = self._parked.get(file_id) or self._compressed.get(file_id)
            if seen is None or status.is_due(seen):
                is_starved = now_s - self._waiting.get(file_id, now_s) >= STARVED_S
                wanted[file_id] = status.modified_ns + (STARVED_NS if is_starved else 0)
            elif file_id in self._parked and self._known[file_id].path != path:
                self._known[file_id] = KnownFile(path, self._known[file_id].position)
                self._unsaved.add(file_id)
        if not wanted:
            self._waiting = {}
            return
        closing, opening = make_room(wanted.items(), self._open_files(), self._files_max)
        for file_id in closing:
            self._park(self._files[file_id])
        # In the order of their names, as far as they are opened together.
        for file_id in (chosen for chosen in wanted if chosen in set(opening)) if len(opening) < 100 else opening:
            self._open(names[file_id], file_id, predecessors.get(names[file_id]), now_s)
        waiting = wanted.keys() - set(opening)
        if waiting and not self._waiting:
            logger.warning(
                "%d files have something to send and %d can be open at a time: %d wait for others to be read",
                len(wanted),
                self._files_max,
                len(waiting),
            )
        self._waiting = {file_id: self._waiting.get(file_id, now_s) for file_id in waiting}

    def _open_files(self) -> list[OpenFile]:
        needed = {followed.after.file.file_id for followed in self._files.values() if followed.after is not None}
        return [
            OpenFile(file_id, followed.file.seen.modified_ns, followed.is_idle() and file_id not in needed)
            for file_id, followed in self._files.items()
        ]

    def _park(self, followed: ShippedFile) -> None:
        """Close a file without unsent data; a scan opens it again after a write."""
        file = followed.file
        self._note(followed)
        self._parked[file.file_id] = file.seen
        self._close(followed)

    def _close(self, followed: ShippedFile) -> None:
        followed.file.close()
        del self._files[followed.file.file_id]
        self._awake.pop(followed.file.file_id, None)

    def _open(self, path: str, file_id: FileId, after: ShippedFile | None, now_s: float) -> None:
        known = self._known.get(file_id)
        try:
            # What was done and is written to since may be a new file with the inode of one that was removed.
            if known is not None and known.done_ns not in (None, os.stat(path).st_mtime_ns):
                known = None
            file = FollowedFile.open(path, None if known is None else known.position, self._line_bytes_max)
        except OSError as error:
            self._unreadable(path, error)
            return
        if file.file_id != file_id:
            # Its name was taken by another one since it was looked up: the next scan sees both.
            file.close()
            return
        self._readable(path)
        if known is not None and not self._is_continued(file, known) and known.done_ns is None:
            logger.warning("%s was cut or replaced while it was not open: it is sent from its beginning", path)
        self._parked.pop(file_id, None)
        self._compressed.pop(file_id, None)
        self._add(ShippedFile(file, after), now_s)

    def _is_continued(self, file: FollowedFile, known: KnownFile) -> bool:
        return file.position == known.position.offset and file.is_the_one(known.position)

    def _add(self, followed: ShippedFile, now_s: float) -> None:
        self._files[followed.file.file_id] = followed
        self._unsaved.add(followed.file.file_id)
        self._wake(followed, now_s)

    def _wake(self, followed: ShippedFile, now_s: float) -> None:
        followed.awake_until_s = now_s + AWAKE_S
        self._awake[followed.file.file_id] = followed

    def _unreadable(self, path: str, error: OSError) -> None:
        sentence = f"{path} cannot be read: {error.strerror}"
        self._tell(path, sentence)
        if self._is_to_end:
            self.summary.unread[path] = sentence

    def _readable(self, path: str) -> None:
        self._told.pop(path, None)
        self.summary.unread.pop(path, None)

    def _look_for_missing(
        self, names: Mapping[FileId, str], predecessors: dict[str, ShippedFile], now_s: float
    ) -> None:
        """Look for known files without a current name: rotated while closed, or deleted."""
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
                is_wanted = known.done_ns is None and self._patterns.match(known.path)
                is_there = not is_wanted or self._follow_rotated(path, known, predecessors, now_s)
            else:
                # A folder on another device may be where a disk is mounted later.
                is_there = folder.device != known.position.device
            if not is_there:
                del self._known[file_id]
                self._unsaved.add(file_id)
                if known.done_ns is None:
                    logger.warning("%s is gone since it was last followed: what was not sent of it is lost", known.path)

    def _follow_rotated(self, path: str, known: KnownFile, predecessors: dict[str, ShippedFile], now_s: float) -> bool:
        """Send the rest of a file that lost its name while closed; False if the path refers to another file."""
        if len(self._files) >= self._files_max:
            closing, _ = make_room([(known.position.file_id, 0)], self._open_files(), self._files_max)
            if not closing:
                self._look_due_s = now_s
                return True  # the next scan tries again
            self._park(self._files[closing[0]])
        try:
            file = FollowedFile.open(path, known.position, self._line_bytes_max)
        except OSError as error:
            logger.warning("%s, once %s, cannot be read: %s", path, known.path, error.strerror)
            return True
        if not self._is_continued(file, known):
            file.close()
            return False
        # Its lines are those of the name that it had.
        file.path = known.path
        followed = ShippedFile(file, predecessors.get(known.path))
        followed.nameless(now_s)
        self._add(followed, now_s)
        predecessors[known.path] = followed
        return True

    def _turn(self) -> int:
        """Send unsent data of each file, up to one turn's limit; returns the number of lines."""
        count = 0
        now_s = self._monotonic_s()
        turn = list(self._awake.values())
        # Whoever filled the queue last is not the first again.
        self._cursor = (self._cursor + 1) % len(turn) if turn and not self._sender.has_room else 0
        for followed in turn[self._cursor :] + turn[: self._cursor]:
            if not self._sender.has_room:
                break
            if followed.is_ready(now_s):
                sent = self._ship(followed, now_s)
                count += sent
                if sent:
                    followed.awake_until_s = now_s + AWAKE_S
                elif followed.is_asleep(now_s):
                    del self._awake[followed.file.file_id]
        return count

    def _ship(self, followed: ShippedFile, now_s: float) -> int:
        file = followed.file
        key = os.fsencode(file.path)
        headers: list[tuple[str, str | bytes | None]] = [("file", key), ("host", self._host)]
        file.line_bytes_max = min(self._line_bytes_max, self._sender.limits.value_bytes_max(key, headers))
        is_finished = followed.is_finished(now_s)
        followed.is_at_end = False
        self._sending.add(file.file_id)
        tell = self._telling(followed)
        count, begin = 0, file.position
        refused: Line | None = None
        lines = file.lines(is_complete=is_finished or self._is_to_end)
        try:
            # What is done here for each line is most of what shipping costs.
            for line in lines:
                text, end = line
                if file.cuts != followed.cuts:
                    self._begun_anew(followed)
                    begin = 0
                sent = Sent(begin, end, len(text), followed.cuts, followed.round)
                if not self._sender.send(text, key, headers, sent, tell):
                    refused = line
                    break
                followed.add(sent)
                count, begin = count + 1, end
                if count == LINES_PER_TURN:
                    break
            self._begun_anew(followed)
        except OSError as error:
            self._failed(followed, error, now_s)
            return count
        finally:
            lines.close()
        if followed.is_failing:
            followed.is_failing = False
            followed.retry.end()
            self._readable(file.path)
        if refused is not None:
            file.go_back(begin)
            if refused.end == 0:
                self._lost(f"half a line of {file.path}, which was written anew, is lost")
            return count
        file.trim()
        if file.compression is not None:
            self._leave_out(followed)
            return count
        followed.is_at_end = count < LINES_PER_TURN
        # While its lines were sent it may have grown.
        followed.is_done = is_finished and followed.is_at_end and followed.is_finished(self._monotonic_s())
        return count

    def _begun_anew(self, followed: ShippedFile) -> bool:
        if not followed.has_begun_anew():
            return False
        self._unsaved.add(followed.file.file_id)
        logger.warning("%s was cut or written anew: it is sent from its beginning", followed.file.path)
        return True

    def _telling(self, followed: ShippedFile) -> Callable[[Sent, LineVerdict], None]:
        path = followed.file.path

        def tell(sent: Sent, verdict: LineVerdict) -> None:
            where = f"the line of {sent.size} bytes at byte {sent.begin} of {path}"
            if verdict is LineVerdict.AGAIN:
                if followed.send_again(sent):
                    self._wake(followed, self._monotonic_s())
                else:
                    self._lost(f"{where} was cut away before it arrived: it is lost")
                return
            self._lost(f"{where} is refused by topic {self._sender.topic!r} for what it is: it is left out")
            sent.has_arrived = True

        return tell

    def _lost(self, sentence: str) -> None:
        self.summary.lost += 1
        logger.warning("%s", sentence)

    def _failed(self, followed: ShippedFile, error: OSError, now_s: float) -> None:
        """Record a read error: other files continue, and the read is retried later."""
        file = followed.file
        followed.is_failing = True
        followed.retry.begin(now_s)
        sentence = f"{file.path} cannot be read at byte {file.position}: {error.strerror}"
        self._tell(file.path, sentence)
        if self._is_to_end:
            self.summary.unread[file.path] = sentence

    def _leave_out(self, followed: ShippedFile) -> None:
        file = followed.file
        self._tell(file.path, f"{file.path} is compressed ({file.compression}): it is left out")
        self._compressed[file.file_id] = file.seen
        # A file that has taken its name waits for its end.
        followed.is_at_end = True
        self._close(followed)

    def _let_go(self) -> None:
        """Close finished files once their last line is acknowledged."""
        for file_id, followed in list(self._awake.items()):
            if not followed.is_done or followed.under_way:
                continue
            self._note(followed)
            if followed.file.is_removed:
                del self._known[file_id]
            self._close(followed)

    def _note(self, followed: ShippedFile) -> None:
        file = followed.file
        self._begun_anew(followed)
        done_ns = file.modified_ns if followed.is_done and not followed.under_way else None
        self._known[file.file_id] = KnownFile(file.path, file.position_at(followed.offset), done_ns)
        self._unsaved.add(file.file_id)

    def _save(self) -> None:
        """Write the positions to disk; a failed write is retried later, and the previous file remains."""
        self._find_arrived()
        for file_id in list(self._unsaved):
            if (followed := self._files.get(file_id)) is not None:
                self._note(followed)
        if not self._unsaved:
            return
        try:
            save_positions(self._positions_path, self._known.values())
        except OSError as error:
            self.summary.unsaved = f"{self._positions_path} cannot be written: {error.strerror}"
            pause_s = self._save_pause.begin(self._monotonic_s())
            logger.warning("%s; it is tried again in %g s", self.summary.unsaved, pause_s)
            return
        self._unsaved.clear()
        self.summary.unsaved = ""
        self._save_pause.end()

    def _find_arrived(self) -> None:
        """Mark files with lines that have arrived since their position was recorded."""
        for file_id in list(self._sending):
            followed = self._files.get(file_id)
            if followed is None or not followed.under_way:
                self._sending.remove(file_id)
            if followed is not None:
                known = self._known.get(file_id)
                if known is None or known.position.offset != followed.offset:
                    self._unsaved.add(file_id)

    def _watch_progress(self) -> None:
        """Log, at growing intervals, that no line is acknowledged, and the reason."""
        now_s = self._monotonic_s()
        has_work = not self._sender.has_room or any(
            followed.under_way or not followed.is_at_end for followed in self._awake.values()
        )
        if self._sender.arrived != self._arrived or not has_work:
            if self._sender.arrived != self._arrived and not self._report_pause.is_first:
                logger.warning("lines arrive again")
            self._arrived = self._sender.arrived
            self._progress_s = now_s
            self._report_pause.end()
            self._report_pause.begin(now_s)
        elif self._report_pause.is_over(now_s):
            waited_s = now_s - self._progress_s
            why = self._sender.trouble or "the brokers do not answer"
            logger.warning("nothing was acknowledged for %.0f s, lines wait in their files: %s", waited_s, why)
            self._report_pause.begin(now_s)

    def _is_over(self) -> bool:
        """Whether all lines were read and acknowledged, or no progress was made for too long."""
        is_read = not self._waiting and all(
            followed.is_failing or followed.is_done or (followed.is_at_end and not followed.under_way)
            for followed in self._files.values()
        )
        patience_s = REFUSED_PATIENCE_S if self._sender.is_refused else PATIENCE_S
        return is_read or self._monotonic_s() - self._progress_s >= patience_s

    def _finish(self) -> None:
        """Wait for lines in flight, record the positions, and count unacknowledged lines."""
        deadline_s = time.monotonic() + FLUSH_S
        while self._under_way() and not self._hurrying and (left_s := deadline_s - time.monotonic()) > 0:
            self._sender.flush(min(left_s, IDLE_S))
        self._save()
        summary = self.summary
        summary.shipped = self._sender.arrived
        summary.trouble = self._sender.trouble
        summary.undelivered = self._under_way()
        if not self._is_to_end:
            return
        why = f": {summary.trouble}" if summary.trouble else ""
        for followed in self._files.values():
            path = followed.file.path
            if (left := followed.unsent_bytes) and path not in summary.unread:
                summary.unread[path] = f"{left} bytes of {path} were not delivered{why}"
        if self._waiting:
            summary.unread[""] = f"{len(self._waiting)} files were not read, as too many are open"

    def _under_way(self) -> int:
        return sum(followed.under_way for followed in self._files.values())
