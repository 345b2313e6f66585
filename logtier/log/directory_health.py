"""Whether a log folder can still be trusted: which errors of its disk concern a file, and which the folder."""

import errno
import logging
from collections.abc import Callable
from typing import Final

logger = logging.getLogger(__name__)

# No space, no memory, no more open files: what is written on the device stays right, and the call may succeed later.
_PASSING: Final = frozenset(
    (errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR, errno.EAGAIN, errno.EFBIG)
)
# A name that is not there: somebody removed files, or the whole folder (a mount) is gone.
_MISSING: Final = frozenset((errno.ENOENT, errno.ENOTDIR))


def is_no_space(error: OSError) -> bool:
    """Whether the disk, or the quota, is full.

    >>> is_no_space(OSError(28, "No space left on device")), is_no_space(OSError(5, "Input/output error"))
    (True, False)
    """
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


class DirectoryHealth:
    """One log folder's state, shared by all its logs.

    Invariant: `failure` is None until the folder fails, and stays what it then becomes: a folder comes back with the
    next start of the broker only, since nobody knows which of its writes the device has.
    """

    __slots__ = ("_is_present", "_on_failure", "failure", "path")

    def __init__(
        self,
        path: str,
        *,
        is_present: Callable[[], bool] | None = None,
        on_failure: Callable[[], None] | None = None,
    ) -> None:
        """`is_present` tells whether the folder still is what it was, `on_failure` is called once, when it fails."""
        self.path = path
        self.failure: str | None = None
        self._is_present = is_present
        self._on_failure = on_failure

    def observe(self, what: str, error: OSError) -> None:
        """Judge an error that the disk gave while something was read or written: does the folder go offline?"""
        if error.errno is None or error.errno in _PASSING:
            return
        if error.errno in _MISSING and (self._is_present is None or self._is_present()):
            return
        self.fail(f"cannot {what}: {error.strerror or error}")

    def fail(self, reason: str) -> None:
        """Take the folder offline; only the first reason is told."""
        if self.failure is not None:
            return
        self.failure = reason
        logger.error("log folder %s is offline until the broker is restarted: %s", self.path, reason)
        if self._on_failure is not None:
            self._on_failure()
