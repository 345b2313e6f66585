"""The program of a process that sends parts of files to clients, in time that nobody else wants.

`cold_sender` starts it as a script that imports nothing of ours, and gives it one end of a socket pair (Unix,
SOCK_SEQPACKET): its descriptor is the only argument. READY says that the process is there. Each message is a REQUEST,
with the client's socket and the file as SCM_RIGHTS, and is answered by an ANSWER, in any order. When the other end is
closed, as it is when the broker ends in whatever way, so does this process.
"""

import contextlib
import errno
import os
import select
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable
from typing import Final

#: Number of the request, first byte in the file, bytes, bytes a second of all requests together (0: no limit).
REQUEST: Final = struct.Struct("=qqqq")
#: Number of the request, bytes sent, and an errno, 0 or ENDED. Fewer bytes and a 0: the client takes no more for now.
ANSWER: Final = struct.Struct("=qqi")
#: The file is shorter than it was said to be.
ENDED: Final = -1
READY: Final = ANSWER.pack(-1, 0, 0)
#: Devices gain from a few reads at a time, and lose from many.
THREADS: Final = 4

#: Sent at once: a kernel that is not preemptible gives nobody this core meanwhile.
_CHUNK_BYTES: Final = 128 << 10
#: How long in all a part may wait for its client, who is slower than the disk: others wait for this thread.
_ROOM_WAIT_S: Final = 0.01
_NICEST: Final = 19


class Pace:
    """Spreads what all threads send over time; what somebody missed who woke up late is not made up for in a burst."""

    def __init__(
        self, now_s: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._now_s = now_s
        self._sleep = sleep
        self._lock = threading.Lock()
        self._free_s = 0.0

    def wait(self, size: int, bytes_per_s: int) -> None:
        """Wait for the turn of so many bytes."""
        with self._lock:
            now_s = self._now_s()
            turn_s = max(self._free_s, now_s)
            self._free_s = turn_s + size / bytes_per_s
        if turn_s > now_s:
            self._sleep(turn_s - now_s)


def send(client: int, file: int, position: int, size: int, bytes_per_s: int, pace: Pace) -> tuple[int, int]:
    """Send a part of a file to a non-blocking socket; how many bytes of it were sent, and an errno, 0 or ENDED."""
    with contextlib.suppress(OSError):  # advice
        # What follows will be asked for next: let the device begin.
        os.posix_fadvise(file, position, 2 * size, os.POSIX_FADV_WILLNEED)
    room = select.poll()
    room.register(client, select.POLLOUT)
    patience_s = _ROOM_WAIT_S
    sent = 0
    while sent < size:
        chunk = min(_CHUNK_BYTES, size - sent)
        if bytes_per_s:
            pace.wait(chunk, bytes_per_s)
        try:
            taken = os.sendfile(client, file, position + sent, chunk)
        except BlockingIOError:
            asked_s = time.monotonic()
            if patience_s > 0 and room.poll(patience_s * 1000):
                patience_s -= time.monotonic() - asked_s
                continue
            return sent, 0
        except OSError as error:
            return sent, error.errno or errno.EIO
        if not taken:
            return sent, ENDED
        sent += taken
    return sent, 0


def _serve(channel: socket.socket, pace: Pace) -> None:
    with contextlib.suppress(OSError):  # the other end is closed
        while True:
            message, descriptors, _, _ = socket.recv_fds(channel, REQUEST.size, 2)
            if not message:
                return
            number, position, size, bytes_per_s = REQUEST.unpack(message)
            try:
                if len(descriptors) == 2:
                    client, file = descriptors
                    sent, code = send(client, file, position, size, bytes_per_s, pace)
                else:
                    sent, code = 0, errno.EMFILE
            finally:
                for descriptor in descriptors:
                    with contextlib.suppress(OSError):  # it is closed all the same, and the broker waits for an answer
                        os.close(descriptor)
            channel.send(ANSWER.pack(number, sent, code))


def main() -> None:
    """Serve until the other end is closed."""
    for number in (signal.SIGINT, signal.SIGTERM):  # they may go to all processes of a terminal or a service
        signal.signal(number, signal.SIG_IGN)  # the broker decides when it ends
    try:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    except OSError:  # some sandboxes forbid it, some do not know it
        os.nice(_NICEST)
    pace = Pace()
    with socket.socket(fileno=int(sys.argv[1])) as channel:
        channel.send(READY)
        threads = [threading.Thread(target=_serve, args=(channel, pace)) for _ in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


if __name__ == "__main__":
    main()
