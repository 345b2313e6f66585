"""Decides whether and when a failed stage is restarted. Pure: time and chance are arguments.

A run restarts one stage while the other stages keep running. Only a transient failure leads to a restart (see
`headwater.pipelines.engine.transient_failures`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

__all__ = ["ATTEMPTS_ONCE", "StageGivenUp", "StageRestart", "StageRestarts", "decide"]

ATTEMPTS: Final = 20
# For an available-now run: pauses of half a minute in total, since the caller waits for its end.
ATTEMPTS_ONCE: Final = 5
WITHIN_MS: Final = 60 * 60_000
BACKOFF_MS: Final = 1_000
# For a continuous run: a broker may be unavailable for a quarter of an hour before a stage is given up.
BACKOFF_MAX_MS: Final = 60_000
# Share of the pause; spreads the restarts of stages that the same broker failed.
JITTER: Final = 0.5
_DOUBLINGS_MAX: Final = 31


@dataclass(frozen=True, slots=True)
class StageRestarts:
    """At most `attempts` restarts within `within_ms`, after pauses that double from `backoff_ms`."""

    attempts: int = ATTEMPTS
    within_ms: int = WITHIN_MS
    backoff_ms: int = BACKOFF_MS
    backoff_max_ms: int = BACKOFF_MAX_MS


@dataclass(frozen=True, slots=True)
class StageRestart:
    """Restart the stage after a pause; `attempt` counts from 1 within the policy's time."""

    attempt: int
    after_ms: int


@dataclass(frozen=True, slots=True)
class StageGivenUp:
    """Do not restart the stage: the policy's attempts are exhausted."""

    attempts: int


def decide(
    policy: StageRestarts, restarts_ms: Sequence[int], now_ms: int, chance: float
) -> StageRestart | StageGivenUp:
    """Decide on a failure at `now_ms` of a stage that was restarted at these times; `chance` is in [0, 1).

    >>> policy = StageRestarts(attempts=3, within_ms=60_000, backoff_ms=1_000, backoff_max_ms=3_000)
    >>> [decide(policy, [0] * count, 10, 0.0) for count in (0, 1, 3)]
    [StageRestart(attempt=1, after_ms=1000), StageRestart(attempt=2, after_ms=2000), StageGivenUp(attempts=3)]
    >>> decide(policy, [0, 0, 0], 61_000, 0.0)
    StageRestart(attempt=1, after_ms=1000)
    >>> decide(policy, [], 0, 0.5)
    StageRestart(attempt=1, after_ms=750)
    """
    recent = sum(1 for at_ms in restarts_ms if now_ms - at_ms <= policy.within_ms)
    if recent >= policy.attempts:
        return StageGivenUp(recent)
    pause_ms = min(policy.backoff_ms << min(recent, _DOUBLINGS_MAX), policy.backoff_max_ms)
    # A declared pause above the maximum is kept.
    pause_ms = max(pause_ms, policy.backoff_ms)
    return StageRestart(recent + 1, int(pause_ms * (1 - JITTER * chance)))
