"""SIGTERM and Ctrl-C as exceptions, for commands with work to finish: deliveries, leaving a group."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType
from typing import Final, NoReturn

EXIT_TERMINATED: Final = 128 + signal.SIGTERM
"""The exit code that shells report for a process ended by SIGTERM."""


class Terminated(KeyboardInterrupt):
    """SIGTERM arrived. Like KeyboardInterrupt, the exception passes `except Exception`; `finally` blocks run."""


def raise_on_sigterm() -> None:
    """Raise `Terminated` in the main thread on SIGTERM; Python's default ends the process at once."""
    signal.signal(signal.SIGTERM, _raise)


@contextlib.contextmanager
def held_signals() -> Iterator[None]:
    """Defer the first SIGTERM or Ctrl-C inside a block until the block has ended.

    A second signal is raised at once: the block may write into a pipe whose reader never returns.
    """
    held: list[int] = []

    def hold(number: int, frame: FrameType | None) -> None:
        if held:
            _raise(number, frame)
        held.append(number)

    before = {number: signal.signal(number, hold) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    for signal_number in held:
        handler = before[signal.Signals(signal_number)]
        if callable(handler):
            handler(signal_number, None)


def _raise(number: int, _frame: FrameType | None) -> NoReturn:
    raise Terminated if number == signal.SIGTERM else KeyboardInterrupt
