"""Failures that are repeated at short intervals: each is logged once, and again only after another one or a success."""

import logging


class FailureLog:
    """The last failure of one activity.

    >>> failures = FailureLog(logging.getLogger("doctest"))
    >>> [failures.failed(logging.DEBUG, text) for text in ("no node", "no node", "no answer", "no node")]
    [True, False, True, True]
    >>> failures.succeeded()
    >>> failures.failed(logging.DEBUG, "no node")
    True
    """

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._last = ""

    def failed(self, level: int, text: str) -> bool:
        """Log a failure unless it is the one of the attempt before; return whether it was logged."""
        if text == self._last:
            return False
        self._last = text
        self._log.log(level, "%s", text)
        return True

    def succeeded(self) -> None:
        """Log the next failure whatever it is."""
        self._last = ""
