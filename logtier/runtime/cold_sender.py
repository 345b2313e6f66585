"""Sends cold data, which is not in the page cache, from a process with idle scheduling priority.

Reading cold data from the device and sending it takes CPU time from producers and from consumers of new data. A thread
of the broker cannot have idle priority: a preempted thread may hold Python's lock, and all other threads wait for it.
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

#: Bytes of one request to the process, per client; the time of a part shows whether the process gets CPU time.
PART_BYTES: Final = 1 << 20
#: With this number of parts in the process, no further readers are accepted; accepted readers queue in the process.
PARTS_MAX: Final = 16
#: Time limit for a part and the parts before it; a process beyond the limit gets too little CPU time.
PART_MS_MAX: Final = 250
#: Time for which the broker sends cold data itself after the limit was exceeded.
REST_MS: Final = 5_000
#: Time for which the broker sends cold data itself after the process ended unexpectedly.
RESTART_MS: Final = 60_000
#: Producers count as active for this time after a produce request.
PRODUCING_MS: Final = 1_000

_END_S_MAX: Final = 5.0

#: Callback with the number of bytes sent of a part, and the error, if any.
Sent = Callable[[int, OSError | None], None]


class Sender(Protocol):
    """Sends parts of files to sockets outside the event loop."""

    def is_ready(self) -> bool:
        """Whether the sender accepts a further reader. The first call starts the process."""

    def send(self, client: int, file: int, position: int, size: int, done: Sent) -> bool:
        """Send a part of a file to a non-blocking socket; False if the part is not accepted and `done` is not called.

        Parts already accepted are still sent after is_ready() turns false: no thread has read them ahead.
        Fewer bytes than requested without an error mean that the client accepts no further bytes at present.

        Args:
            client: Descriptor of the socket; socket and file may be closed before `done` is called.
            size: At most PART_BYTES.
        """


class ColdReadPace:
    """Rate limit of cold reads; it applies only while producers write.

    Args:
        bytes_per_s: Returns the limit.
        produced: Returns a count that grows with each produce request.
    """

    def __init__(self, clock: Clock, bytes_per_s: Callable[[], int], produced: Callable[[], int]) -> None:
        self._clock = clock
        self._bytes_per_s = bytes_per_s
        self._produced = produced
        self._count = produced()
        self._quiet_from_ms = 0

    def bytes_per_s(self) -> int:
        """Return the present limit, 0 for none."""
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
    """A `cold_sender_worker` process, started on demand; used on one event loop.

    Invariant: a failure of the process costs only speed, and the connections with parts in progress, since the number
    of bytes sent is unknown. The broker sends cold data itself until the process is ready, while the process has
    PARTS_MAX parts, while it gets too little CPU time (a busy machine must not starve cold readers), and for
    RESTART_MS after the process ended.

    Args:
        bytes_per_s: Returns the rate limit of all parts together, 0 for none; called for each part.
    """

    def __init__(self, clock: Clock, bytes_per_s: Callable[[], int] = lambda: 0) -> None:
        self._clock = clock
        self._bytes_per_s = bytes_per_s
        self._numbers = itertools.count()
        #: In the order of the requests.
        self._parts: dict[int, _Part] = {}
        self._rests_until_ms = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None
        self._is_there = False
        self._is_closed = False

    @property
    def process_id(self) -> int | None:
        """Id of the process, if it runs."""
        return None if self._process is None else self._process.pid

    def is_ready(self) -> bool:
        """Whether the process accepts a further reader. The first call starts the process."""
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
        """Send as `Sender.send` does."""
        if self._channel is None or not self._is_there:
            return False
        number = next(self._numbers)
        rate = self._bytes_per_s()
        try:
            socket.send_fds(self._channel, [REQUEST.pack(number, position, size, rate)], [client, file])
        except OSError:  # the socket is full, or the process ended, which _answered notices
            return False
        due_ms = self._clock.monotonic_ms() + PART_MS_MAX
        if rate:
            due_ms += (len(self._parts) + 1) * PART_BYTES * 1000 // rate
        self._parts[number] = _Part(due_ms, done)
        return True

    def close(self) -> None:
        """End the process without calling `done` for its parts."""
        self._is_closed = True
        self._parts.clear()
        process = self._end()
        if process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):  # the process waits for a device
                process.wait(_END_S_MAX)

    def _start(self) -> None:
        try:
            channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            self._channel = channel
            with theirs:
                # Isolated, without site: the user's environment has no effect, and the start takes 10 ms.
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
        """Handle the end of the process: fail its parts."""
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
