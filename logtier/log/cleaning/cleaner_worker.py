"""The cleaner's process: `python -m headwater.logtier.log.cleaning.cleaner_worker`, jobs on stdin, reports on stdout.

The broker starts it. It does what must not happen on the broker's event loop: reading logs as a whole, hashing keys,
compressing. It ends at once when its stdin ends, hence with the broker, however that ends; a cleaning under way leaves
`.cleaned` files behind then, which the next start removes.
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

# Serving clients comes first; on an idle machine it makes no difference.
_NICE: Final = 10
_READ_BYTES: Final = 64 * 1024
# Longest single pause, and how long bursts may be that nothing slows down.
_PAUSE_S_MAX: Final = 1.0
_BURST_S: Final = 0.1


class IoThrottle:
    """Keeps reads and writes together at `log.cleaner.io.max.bytes.per.second`, on average."""

    def __init__(self, bytes_per_second: float, *, now_s: Callable[[], float], pause: Callable[[float], None]) -> None:
        self._bytes_per_second = bytes_per_second
        self._now_s = now_s
        self._pause = pause
        #: When what was read and written so far would have been through at that rate.
        self._paid_until_s = now_s()

    def __call__(self, size: int) -> None:
        """Count bytes, and wait until they are due."""
        now_s = self._now_s()
        self._paid_until_s = max(self._paid_until_s, now_s - _BURST_S) + size / self._bytes_per_second
        while (ahead_s := self._paid_until_s - now_s) > _BURST_S:
            self._pause(min(ahead_s, _PAUSE_S_MAX))
            now_s = self._now_s()


def work(job: CleanerJob, report: Callable[[bytes], None]) -> None:
    """Clean one log; every outcome becomes a report."""
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
    """Take jobs until stdin ends."""
    # Ctrl-C reaches the whole process group; the broker alone decides when this one ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(OSError):
        os.nice(_NICE)
    # Nothing else may write between the reports.
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
    # Not `sys.exit`: the cleaning under way is of no use to anybody.
    os._exit(0)


def _write(descriptor: int, data: bytes) -> None:
    try:
        while data:
            data = data[os.write(descriptor, data) :]
    except BrokenPipeError:
        os._exit(0)


if __name__ == "__main__":
    main()
