"""The broker's end of a cleaner process."""

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator
from typing import Final, Protocol

from headwater.logtier.log.cleaning.cleaner_job import (
    CleanerFailure,
    CleanerJob,
    CleanerReport,
    CleanerResult,
    report_from_line,
)

_MODULE: Final = "headwater.logtier.log.cleaning.cleaner_worker"
_STOP_S_MAX: Final = 5.0


class CleanerDiedError(RuntimeError):
    """The cleaner process ended during a cleaning."""


class Worker(Protocol):
    """Cleans one log at a time."""

    def clean(self, job: CleanerJob) -> AsyncIterator[CleanerReport]:
        """Yield complete groups, then a result or a failure. Raises CleanerDiedError."""

    async def stop(self) -> None:
        """End the worker; a running cleaning leaves `.cleaned` files."""


class CleanerProcess:
    """One cleaner process, started at its first job.

    The process ends when its stdin closes: by `stop`, or when the broker process ends for any reason.
    """

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None

    async def clean(self, job: CleanerJob) -> AsyncIterator[CleanerReport]:
        """Yield complete groups, then a result or a failure. Raises CleanerDiedError."""
        process = self._process
        if process is None or process.returncode is not None:
            process = self._process = await self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(ConnectionError):  # then there is nothing to read either
            process.stdin.write(job.to_line())
            await process.stdin.drain()
        while line := await process.stdout.readline():
            report = report_from_line(line)
            yield report
            if isinstance(report, CleanerResult | CleanerFailure):
                return
        raise CleanerDiedError(f"the cleaner process ended with code {await process.wait()}")

    async def stop(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is None or process.returncode is not None:
            return
        assert process.stdin is not None
        process.stdin.close()
        try:
            await asyncio.wait_for(process.wait(), _STOP_S_MAX)
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    async def _start(self) -> asyncio.subprocess.Process:
        # The same modules as in this process, and none from the current folder.
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-P",
            "-m",
            _MODULE,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env=environment,
        )
