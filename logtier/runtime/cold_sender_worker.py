"""Program of the process that sends parts of files to clients with idle scheduling priority.

`cold_sender` starts this file as a script, without imports from the package. The only argument is the descriptor of one
end of a socket pair (Unix, SOCK_SEQPACKET). The process sends READY after its start. Each message to the process is a
REQUEST with the client's socket and the file as SCM_RIGHTS; the process replies with an ANSWER, in any order. The
process ends when the other end is closed, which the end of the broker implies.
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

#: Request number, position in the file, size, and the rate limit of all requests in bytes per second (0: no limit).
REQUEST: Final = struct.Struct("=qqqq")
#: Request number, bytes sent, and an errno, 0 or ENDED. Fewer bytes with 0: the client accepts no more at present.
ANSWER: Final = struct.Struct("=qqi")
#: The file ends before the requested part.
ENDED: Final = -1
READY: Final = ANSWER.pack(-1, 0, 0)
#: A few concurrent reads raise a device's throughput; many lower it.
THREADS: Final = 4

#: Bytes of one system call: without kernel preemption, a call occupies the core until it returns.
_CHUNK_BYTES: Final = 128 << 10
#: Total time for which a part waits for a client slower than the disk; other parts need the thread.
_ROOM_WAIT_S: Final = 0.01
_NICEST: Final = 19


class Pace:
    """Limits the rate of all threads together; a thread that wakes up late does not catch up in a burst."""

    def __init__(
        self, now_s: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._now_s = now_s
        self._sleep = sleep
        self._lock = threading.Lock()
        self._free_s = 0.0

    def wait(self, size: int, bytes_per_s: int) -> None:
        """Wait until `size` bytes may be sent."""
        with self._lock:
            now_s = self._now_s()
            turn_s = max(self._free_s, now_s)
            self._free_s = turn_s + size / bytes_per_s
        if turn_s > now_s:
            self._sleep(turn_s - now_s)


def send(client: int, file: int, position: int, size: int, bytes_per_s: int, pace: Pace) -> tuple[int, int]:
    """Send a part of a file to a non-blocking socket; return the number of bytes sent, and an errno, 0 or ENDED."""
    with contextlib.suppress(OSError):  # advice
        # The bytes after the part are requested next: start the device early.
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
                    with contextlib.suppress(OSError):  # closed in any case; the broker waits for an answer
                        os.close(descriptor)
            channel.send(ANSWER.pack(number, sent, code))


def main() -> None:
    """Serve requests until the other end is closed."""
    for number in (signal.SIGINT, signal.SIGTERM):  # a terminal or a service may send them to all its processes
        signal.signal(number, signal.SIG_IGN)  # the broker decides when this process ends
    try:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    except OSError:  # some sandboxes forbid or lack SCHED_IDLE
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
