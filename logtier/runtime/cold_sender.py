"""Sends old data, which is not in the page cache, by a process that gets only the time that nobody else wants.

Reading it from the device and putting it into a socket takes cores from those who write and read new data. A thread of
our own cannot be kept from its core: while it has none it may hold Python's lock, and everybody waits for it.
"""

import asyncio
import contextlib
import itertools
import logging
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

from headwater.logtier.runtime import cold_sender_worker
from headwater.logtier.runtime.clock import Clock
from headwater.logtier.runtime.cold_sender_worker import ANSWER, ENDED, READY, REQUEST

logger = logging.getLogger(__name__)

#: Asked of the process at once for one client, so that a part's time tells whether the process gets any.
PART_BYTES: Final = 1 << 20
#: While the process has so many parts, no more readers are left to it; those that are already queue up there.
PARTS_MAX: Final = 16
#: A process that takes longer for a part, and all that were before it, gets too little time.
PART_MS_MAX: Final = 250
#: How long others do its work then.
REST_MS: Final = 5_000
#: How long others do its work after it ended by itself.
RESTART_MS: Final = 60_000
#: A producer that wrote within this time is not to be disturbed.
PRODUCING_MS: Final = 1_000

_END_S_MAX: Final = 5.0

#: Told how many bytes of a part were sent, and what went wrong, if anything did.
Sent = Callable[[int, OSError | None], None]


class Sender(Protocol):
    """Who sends parts of files to sockets beside the event loop."""

    def is_ready(self) -> bool:
        """Whether one more reader is to be left to it. To ask is what starts it."""

    def send(self, client: int, file: int, position: int, size: int, done: Sent) -> bool:
        """Send a part of a file to a non-blocking socket; False if it is not taken, and `done` is never called then.

        What it is left with when it is ready no more is still sent by it: nobody else has read it ahead.
        Fewer bytes than asked for, and no error: the client takes no more for now.

        Args:
            client: Descriptor of the socket; like the file it may be closed before `done` is called.
            size: PART_BYTES at most.
        """


class ColdReadPace:
    """How fast old data is read: as fast as it can be, but limited while producers write.

    Args:
        bytes_per_s: The limit.
        produced: A count that grows with each request of a producer.
    """

    def __init__(self, clock: Clock, bytes_per_s: Callable[[], int], produced: Callable[[], int]) -> None:
        self._clock = clock
        self._bytes_per_s = bytes_per_s
        self._produced = produced
        self._count = produced()
        self._quiet_from_ms = 0

    def bytes_per_s(self) -> int:
        """The limit that holds now, 0 for none."""
        now_ms = self._clock.monotonic_ms()
        count = self._produced()
        if count != self._count:
            self._count = count
            self._quiet_from_ms = now_ms + PRODUCING_MS
        return self._bytes_per_s() if now_ms < self._quiet_from_ms else 0


class _Part(NamedTuple):
    due_ms: int
    done: Sent


class ColdSender:
    """A process of `cold_sender_worker`'s, started when it is first wanted; to be used on one event loop.

    Invariant: whatever happens to it costs speed only, and at its end the connections that it was sending to, as nobody
    knows what they got. Others do its work until it is there, while it has enough of it, when it gets too little time
    (a machine without any to spare must not starve those who read old data), and for a while after its end.

    Args:
        bytes_per_s: How much of all parts together is sent in a second, 0 for no limit; asked at each part.
    """

    def __init__(self, clock: Clock, bytes_per_s: Callable[[], int] = lambda: 0) -> None:
        self._clock = clock
        self._bytes_per_s = bytes_per_s
        self._numbers = itertools.count()
        #: In the order in which they were asked for.
        self._parts: dict[int, _Part] = {}
        self._rests_until_ms = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None
        self._is_there = False
        self._is_closed = False

    @property
    def process_id(self) -> int | None:
        """The process, if there is one."""
        return None if self._process is None else self._process.pid

    def is_ready(self) -> bool:
        """Whether one more reader is to be left to it. To ask is what starts the process."""
        now_ms = self._clock.monotonic_ms()
        for oldest in self._parts.values():
            self._rest_if_late(oldest, now_ms)
            break
        if self._is_closed or now_ms < self._rests_until_ms or len(self._parts) >= PARTS_MAX:
            return False
        if self._channel is None:
            self._start()
        return self._is_there

    def send(self, client: int, file: int, position: int, size: int, done: Sent) -> bool:
        """As `Sender.send`."""
        if self._channel is None or not self._is_there:
            return False
        number = next(self._numbers)
        rate = self._bytes_per_s()
        try:
            socket.send_fds(self._channel, [REQUEST.pack(number, position, size, rate)], [client, file])
        except OSError:  # the socket holds hundreds of parts already, or it is gone, as its answers will tell
            return False
        due_ms = self._clock.monotonic_ms() + PART_MS_MAX
        if rate:
            due_ms += (len(self._parts) + 1) * PART_BYTES * 1000 // rate
        self._parts[number] = _Part(due_ms, done)
        return True

    def close(self) -> None:
        """End the process; nobody is told of parts that it had."""
        self._is_closed = True
        self._parts.clear()
        process = self._end()
        if process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):  # it waits for a device that does not answer
                process.wait(_END_S_MAX)

    def _start(self) -> None:
        try:
            channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            self._channel = channel
            with theirs:
                # Isolated, without site: nothing of a user's environment matters to it, and it starts in 10 ms.
                command = [sys.executable, "-I", "-S", cold_sender_worker.__file__, str(theirs.fileno())]
                self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=(theirs.fileno(),))
        except OSError as error:
            logger.warning("no process can be started to send old data, the broker does it itself: %s", error)
            self._end()
            self._rest(RESTART_MS)
            return
        channel.setblocking(False)
        asyncio.get_running_loop().add_reader(channel.fileno(), self._answered)

    def _answered(self) -> None:
        assert self._channel is not None
        try:
            answer = self._channel.recv(ANSWER.size)
        except BlockingIOError:
            return
        except OSError:
            answer = b""
        if not answer:
            self._lose()
            return
        if answer == READY:
            self._is_there = True
            return
        number, sent, code = ANSWER.unpack(answer)
        part = self._parts.pop(number)
        self._rest_if_late(part, self._clock.monotonic_ms())
        if code == ENDED:
            part.done(sent, OSError("the file is shorter than the slice that was to be sent"))
        else:
            part.done(sent, OSError(code, os.strerror(code)) if code else None)

    def _rest_if_late(self, part: _Part, now_ms: int) -> None:
        if now_ms > part.due_ms:
            self._rest(REST_MS)

    def _rest(self, rest_ms: int) -> None:
        self._rests_until_ms = self._clock.monotonic_ms() + rest_ms

    def _lose(self) -> None:
        """The process is gone, and with it what it was doing."""
        logger.error(
            "the process that sends old data ended; connections that it was sending to are closed (%d), and the broker "
            "does its work for %d s",
            len(self._parts),
            RESTART_MS // 1000,
        )
        self._rest(RESTART_MS)
        process = self._end()
        if process is not None:
            asyncio.get_running_loop().run_in_executor(None, process.wait)
        parts, self._parts = self._parts, {}
        for part in parts.values():
            part.done(0, OSError("the process that sent old data ended"))

    def _end(self) -> subprocess.Popen[bytes] | None:
        channel, self._channel = self._channel, None
        if channel is not None:
            asyncio.get_running_loop().remove_reader(channel.fileno())
            channel.close()
        process, self._process = self._process, None
        if process is not None:
            process.kill()
        self._is_there = False
        return process
