"""SIGTERM as an exception, at once or behind a block."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from headwater.cli.shell.termination import Terminated, held_signals, raise_on_sigterm


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    before = signal.getsignal(signal.SIGTERM)
    # A shell starts what runs in its background with SIGINT ignored.
    before_interrupt = signal.signal(signal.SIGINT, signal.default_int_handler)
    raise_on_sigterm()
    yield
    signal.signal(signal.SIGTERM, before)
    signal.signal(signal.SIGINT, before_interrupt)


def test_sigterm_raises() -> None:
    with pytest.raises(Terminated):
        signal.raise_signal(signal.SIGTERM)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_in_a_held_block_is_raised_behind_it(number: int) -> None:
    done = []
    with pytest.raises(KeyboardInterrupt), held_signals():
        signal.raise_signal(number)
        done.append("block")
    assert done == ["block"]


def test_a_second_signal_ends_a_held_block() -> None:
    done = []
    with pytest.raises(Terminated), held_signals():
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGTERM)
        done.append("block")
    assert done == []
