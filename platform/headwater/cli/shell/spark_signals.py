"""Runs loads until they end, a signal comes, or the calling process is gone."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from typing import TYPE_CHECKING, Any

from headwater.cli.shell.errors import EXIT_INTERRUPTED
from headwater.cli.shell.termination import EXIT_TERMINATED

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headwater.pipelines.loads.request import LoadOutcome
    from headwater.pipelines.loads.running import LoadRun

__all__ = ["until_signal"]

_LOOK_S = 0.5


def until_signal(run: LoadRun, start_spark: Callable[[], SparkSession], *, end_with_caller: bool) -> list[LoadOutcome]:
    """Run. The first SIGINT or SIGTERM ends the jobs and lets no load commit any more; a second ends the process.

    The loads have a thread of their own, so that a signal finds the main thread waiting for nothing they hold. Spark
    starts in the main thread, where pyspark sets a handler: the others are set again afterwards.
    """
    received: list[int] = []

    def on_signal(number: int, _frame: Any) -> None:
        received.append(number)
        if len(received) > 1:
            os._exit(128 + number)  # what was committed is committed, and the rest is not

    def install() -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, on_signal)

    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    caller = os.getppid()
    ended = threading.Event()

    def watch_caller() -> None:
        while not ended.wait(_LOOK_S):
            if os.getppid() != caller:
                received.append(signal.SIGTERM)
                run.stop()
                return

    if end_with_caller:
        threading.Thread(target=watch_caller, name="caller", daemon=True).start()
    session: Future[SparkSession] = Future()
    install()
    try:
        with ThreadPoolExecutor(1, "loads") as pool:
            running = pool.submit(run.run, session.result)
            try:
                session.set_result(start_spark())
            except BaseException as error:  # noqa: BLE001 - raised by the run
                session.set_exception(error)
            install()
            while not wait_for([running], _LOOK_S).done:
                if received:
                    run.stop()
                    break
            outcomes = running.result()
    finally:
        ended.set()
        for number, handler in zip((signal.SIGINT, signal.SIGTERM), before, strict=True):
            signal.signal(number, handler)
    if received and any(outcome.error for outcome in outcomes):
        raise SystemExit(EXIT_INTERRUPTED if received[0] == signal.SIGINT else EXIT_TERMINATED)
    return outcomes
