"""Waits for what comes about in other processes and threads."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

PATIENCE_S = 120.0
POLL_S = 0.05


def until(
    is_reached: Callable[[], bool],
    what: str = "it did not come about",
    *,
    running: Sequence[Future[Any]] = (),
    patience_s: float = PATIENCE_S,
) -> None:
    """Look again and again; `what` is said if it has not come about in time. An error of what is running ends it."""
    deadline_s = time.monotonic() + patience_s
    while not is_reached():
        for each in running:
            if each.done():
                each.result()
        assert time.monotonic() < deadline_s, what
        time.sleep(POLL_S)
