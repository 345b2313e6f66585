"""SIGTERM and Ctrl-C as exceptions, for commands that have something to finish: deliveries, a group to leave."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType
from typing import Final, NoReturn

EXIT_TERMINATED: Final = 128 + signal.SIGTERM
"""What shells report for a process that SIGTERM ended."""


class Terminated(KeyboardInterrupt):
    """SIGTERM arrived. Like Ctrl-C it is no error: `except Exception` lets it pass, `finally` runs."""


def raise_on_sigterm() -> None:
    """Raise `Terminated` in the main thread when SIGTERM arrives, where Python would end the process at once."""
    signal.signal(signal.SIGTERM, _raise)


@contextlib.contextmanager
def held_signals() -> Iterator[None]:
    """Run a block to its end: the first SIGTERM or Ctrl-C in it is raised behind it.

    A second one is raised at once: the block may write into a pipe whose reader never comes back.
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
