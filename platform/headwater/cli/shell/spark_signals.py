"""Runs work on Spark until it ends, a signal comes, or the calling process is gone."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from typing import TYPE_CHECKING, Any, TypeVar

from headwater.cli.shell.errors import EXIT_INTERRUPTED
from headwater.cli.shell.termination import EXIT_TERMINATED

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["exit_code_of", "until_signal"]

_LOOK_S = 0.5
_T = TypeVar("_T")


def until_signal(
    run: Callable[[Callable[[], SparkSession]], _T],
    stop: Callable[[], None],
    start_spark: Callable[[], SparkSession],
    *,
    end_with_caller: bool = False,
) -> tuple[_T, int]:
    """Run; return the result, and the signal that ended it early, 0 without one.

    The first SIGINT or SIGTERM calls `stop`, which lets nothing be committed any more; a second ends the process. The
    work has a thread of its own, so that a signal finds the main thread waiting for nothing that it holds. Spark starts
    in the main thread, where pyspark sets a handler: the others are set again afterwards.
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
                stop()
                return

    if end_with_caller:
        threading.Thread(target=watch_caller, name="caller", daemon=True).start()
    session: Future[SparkSession] = Future()
    install()
    try:
        with ThreadPoolExecutor(1, "spark-work") as pool:
            running = pool.submit(run, session.result)
            try:
                session.set_result(start_spark())
            except BaseException as error:  # noqa: BLE001 - raised by the run
                session.set_exception(error)
            install()
            while not wait_for([running], _LOOK_S).done:
                if received:
                    stop()
                    break
            result = running.result()
    finally:
        ended.set()
        for number, handler in zip((signal.SIGINT, signal.SIGTERM), before, strict=True):
            signal.signal(number, handler)
    return result, received[0] if received else 0


def exit_code_of(number: int) -> int:
    """The exit code of a command that a signal has ended."""
    return EXIT_INTERRUPTED if number == signal.SIGINT else EXIT_TERMINATED
