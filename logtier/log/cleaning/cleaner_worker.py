"""The cleaner process: `python -m headwater.logtier.log.cleaning.cleaner_worker`, jobs on stdin, reports on stdout.

The broker starts it for work that would block the broker's event loop: reading whole logs, hashing keys, compressing.
It ends at once when its stdin closes, and so with the broker; a running cleaning then leaves `.cleaned` files, which
the next start removes.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Final

from headwater.logtier.log.cleaning.cleaner_job import CleanerFailure, CleanerJob, report_to_line
from headwater.logtier.log.cleaning.cleaner_rewrite import LogCleaning
from headwater.logtier.log.segment_swap import CLEANED_SUFFIX
from headwater.logtier.log.segments.segment import LOG_SUFFIX, segment_name
from headwater.logtier.records.compression import CorruptRecordsError
from headwater.logtier.runtime.disk import RealDisk

# Clients have priority; on an idle machine this has no effect.
_NICE: Final = 10
_READ_BYTES: Final = 64 * 1024
# Longest single pause, and longest burst without throttling.
_PAUSE_S_MAX: Final = 1.0
_BURST_S: Final = 0.1


class IoThrottle:
    """Limits reads and writes together to `log.cleaner.io.max.bytes.per.second` on average."""

    def __init__(self, bytes_per_second: float, *, now_s: Callable[[], float], pause: Callable[[float], None]) -> None:
        self._bytes_per_second = bytes_per_second
        self._now_s = now_s
        self._pause = pause
        #: Time at which the bytes so far would be complete at that rate.
        self._paid_until_s = now_s()

    def __call__(self, size: int) -> None:
        """Count bytes and pause until they are within the rate."""
        now_s = self._now_s()
        self._paid_until_s = max(self._paid_until_s, now_s - _BURST_S) + size / self._bytes_per_second
        while (ahead_s := self._paid_until_s - now_s) > _BURST_S:
            self._pause(min(ahead_s, _PAUSE_S_MAX))
            now_s = self._now_s()


def work(job: CleanerJob, report: Callable[[bytes], None]) -> None:
    """Clean one log; every outcome is reported."""
    throttle = IoThrottle(job.io_bytes_per_second, now_s=time.monotonic, pause=time.sleep)
    try:
        cleaning = LogCleaning(job, RealDisk(), throttle)
        for group in cleaning.run():
            # Retention of records without timestamps goes by the file's age.
            path = f"{job.directory}/{segment_name(group.base_offset)}{LOG_SUFFIX}{CLEANED_SUFFIX}"
            os.utime(path, (group.modified_ms / 1000, group.modified_ms / 1000))
            report(report_to_line(group))
        report(report_to_line(cleaning.result()))
    except CorruptRecordsError as error:
        report(report_to_line(CleanerFailure(str(error), is_damage=True)))
    except OSError as error:
        report(report_to_line(CleanerFailure(f"{error.filename or job.directory}: {error.strerror}", is_damage=False)))


def main() -> None:
    """Process jobs until stdin closes."""
    # Ctrl-C reaches the whole process group; only the broker decides when this process ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(OSError):
        os.nice(_NICE)
    # Other output goes to stderr, so that stdout has reports only.
    out = os.dup(1)
    os.dup2(2, 1)
    jobs: SimpleQueue[CleanerJob] = SimpleQueue()
    threading.Thread(target=_receive, args=(jobs,), name="jobs", daemon=True).start()
    while True:
        work(jobs.get(), lambda line: _write(out, line))


def _receive(jobs: SimpleQueue[CleanerJob]) -> None:
    pending = b""
    while data := os.read(0, _READ_BYTES):
        *lines, pending = (pending + data).split(b"\n")
        for line in lines:
            jobs.put(CleanerJob.from_line(line))
    # Not `sys.exit`: the running cleaning is discarded.
    os._exit(0)


def _write(descriptor: int, data: bytes) -> None:
    try:
        while data:
            data = data[os.write(descriptor, data) :]
    except BrokenPipeError:
        os._exit(0)


if __name__ == "__main__":
    main()
