"""Health of a log folder: which disk errors concern a file, and which take the folder offline."""

import errno
import logging
from collections.abc import Callable
from typing import Final

logger = logging.getLogger(__name__)

# No space, memory or file descriptors: data on the device stays valid, and the call may succeed later.
_PASSING: Final = frozenset(
    (errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR, errno.EAGAIN, errno.EFBIG)
)
# A missing name: files were removed, or the whole folder (a mount) is gone.
_MISSING: Final = frozenset((errno.ENOENT, errno.ENOTDIR))


def is_no_space(error: OSError) -> bool:
    """Whether the error is a full disk or an exhausted quota.

    >>> is_no_space(OSError(28, "No space left on device")), is_no_space(OSError(5, "Input/output error"))
    (True, False)
    """
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


class DirectoryHealth:
    """The state of one log folder, shared by all its logs.

    Invariant: `failure` is None until the folder fails, and keeps the first reason afterwards. A failed folder returns
    only with a restart of the broker, because it is unknown which writes reached the device.
    """

    __slots__ = ("_is_present", "_on_failure", "failure", "is_full", "on_full", "path")

    def __init__(
        self,
        path: str,
        *,
        is_present: Callable[[], bool] | None = None,
        on_failure: Callable[[], None] | None = None,
    ) -> None:
        """`is_present` returns whether the folder still exists; `on_failure` is called once, when the folder fails."""
        self.path = path
        self.failure: str | None = None
        #: Whether an append has failed for want of space, and none is known to succeed since.
        self.is_full = False
        #: Called when the folder becomes full.
        self.on_full: Callable[[], None] | None = None
        self._is_present = is_present
        self._on_failure = on_failure

    def observe(self, what: str, error: OSError) -> None:
        """Take the folder offline if a disk error concerns the folder and not one file; `what` names the operation."""
        if is_no_space(error) and not self.is_full:
            self.is_full = True
            if self.on_full is not None:
                self.on_full()
        if error.errno is None or error.errno in _PASSING:
            return
        if error.errno in _MISSING and (self._is_present is None or self._is_present()):
            return
        self.fail(f"cannot {what}: {error.strerror or error}")

    def fail(self, reason: str) -> None:
        """Take the folder offline; only the first reason is kept and logged."""
        if self.failure is not None:
            return
        self.failure = reason
        logger.error("log folder %s is offline until the broker is restarted: %s", self.path, reason)
        if self._on_failure is not None:
            self._on_failure()
