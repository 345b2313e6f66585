"""Those who hear of the states of a store's session."""

import logging
from collections.abc import Callable

from headwater.logtier.metadata.store import SessionCallback, SessionState

log = logging.getLogger(__name__)


class SessionCallbacks:
    """Callbacks in the order of their registration; an error of one is logged and does not affect the others."""

    def __init__(self) -> None:
        self._callbacks: list[SessionCallback] = []

    def add(self, callback: SessionCallback) -> Callable[[], None]:
        """Call `callback` with each new state, until the returned function is called."""
        self._callbacks.append(callback)

        def cancel() -> None:
            if callback in self._callbacks:
                self._callbacks.remove(callback)

        return cancel

    def report(self, state: SessionState) -> None:
        """Call all callbacks; they may cancel themselves or others."""
        for callback in list(self._callbacks):
            try:
                callback(state)
            except Exception:
                log.exception("a callback of the session failed")
