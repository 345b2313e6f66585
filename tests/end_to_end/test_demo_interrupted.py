"""Ctrl-C while the demo produces: librdkafka's binding must not make another error of it."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from headwater.cli.demo.produce import produce

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]


def test_ctrl_c_in_the_middle_of_producing_is_a_keyboard_interrupt_and_restores_the_handlers(topics: Any) -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]

    def records() -> Any:
        for number in range(200_000):
            if number == 30_000:
                signal.raise_signal(signal.SIGINT)
            yield None, b"%d" % number

    with pytest.raises(KeyboardInterrupt):
        produce(topics.servers, f"{topics.prefix}.flights", records(), lambda count: None)
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
