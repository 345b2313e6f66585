"""Work on the event loop in turns, between which other requests get theirs."""

import asyncio
from typing import Final

#: A turn ends after so many steps (records, groups) or so much time, whichever comes first.
STEPS_PER_TURN: Final = 1000
TURN_S: Final = 0.01
#: The clock is looked at after so many steps: that costs as much as a step.
_STEPS_PER_LOOK: Final = 16


class Turns:
    """Counts the steps of a long piece of work. One piece of work uses it at a time."""

    def __init__(self) -> None:
        self._steps = 0
        self._begun_s = 0.0

    async def step(self) -> None:
        """One more step is done: let others in if the turn is over."""
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
