"""Splits long work on the event loop into turns, between which other tasks run."""

import asyncio
from typing import Final

#: Maximum number of steps (records, groups) and maximum time of a turn.
STEPS_PER_TURN: Final = 1000
TURN_S: Final = 0.01
#: Steps between reads of the clock, each of which costs as much as a step.
_STEPS_PER_LOOK: Final = 16


class Turns:
    """Counts the steps of long work. Used for one piece of work at a time."""

    def __init__(self) -> None:
        self._steps = 0
        self._begun_s = 0.0

    async def step(self) -> None:
        """Count a step, and let other tasks run if the turn is over."""
        self._steps += 1
        if self._steps % _STEPS_PER_LOOK == 1:
            now_s = asyncio.get_running_loop().time()
            if self._steps == 1:
                self._begun_s = now_s
            elif now_s - self._begun_s >= TURN_S:
                self._steps = STEPS_PER_TURN
        if self._steps >= STEPS_PER_TURN:
            self._steps = 0
            await asyncio.sleep(0)
