"""Stops a run on SIGINT and SIGTERM."""

from __future__ import annotations

import _thread
import os
import signal
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headwater.pipelines.engine.runner import Runner


def run_until_signal(runner: Runner, on_session: Callable[[], None] = lambda: None) -> Any:
    """Run until the end or a signal: SIGINT and SIGTERM request a stop, a second SIGINT forces it.

    `on_session` is called once Spark is running.
    """

    def on_signal(number: int, frame: Any) -> None:  # noqa: ARG001 - the signature of a handler
        # In a thread: the interrupted code may hold the lock that `stop` needs, and goes on only after this handler.
        _thread.start_new_thread(runner.stop, ())
        signal.signal(signal.SIGINT, signal.default_int_handler)
        # Not by sys.stderr, in whose writing the signal may have come.
        os.write(2, b"stopping as soon as the present batch has ended; Ctrl-C cuts it short\n")

    def install() -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, on_signal)

    def session_is_up(spark: Any) -> None:  # noqa: ARG001 - the signature of the runner's callback
        install()  # Spark has set handlers of its own
        on_session()

    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    install()
    try:
        return runner.run(session_is_up)
    finally:
        for number, handler in zip((signal.SIGINT, signal.SIGTERM), before, strict=True):
            signal.signal(number, handler)
