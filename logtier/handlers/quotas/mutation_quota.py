"""The quota of partitions created and deleted, as one request meets it (KIP-599)."""

from typing import Final

from headwater.logtier.handlers.context import RequestContext
from headwater.logtier.protocol.errors import ErrorCode, KafkaError

NEVER_STRICT: Final = 2**15
"""As the first strict version: every version lets the request through and makes its client wait afterwards."""


class Mutations:
    """Counts what a request does to topics.

    Versions from `strict_from` on are refused what exceeds the quota, and told when to try again; clients of earlier
    ones would not understand, so they are served and then wait.
    """

    def __init__(self, context: RequestContext, strict_from: int) -> None:
        self._context = context
        self._quota = context.mutations(strict_from)

    def count(self, partitions: int) -> None:
        """Count partitions before they are made or removed; KafkaError where they must not be."""
        now_ms = self._context.services.clock.monotonic_ms()
        if self._quota is not None and not self._quota.take(partitions, now_ms):
            raise KafkaError(ErrorCode.throttling_quota_exceeded, "The throttling quota has been exceeded.")

    def throttle(self) -> None:
        """Make the client wait, whether it was refused or was let through."""
        if self._quota is not None:
            now_ms = self._context.services.clock.monotonic_ms()
            self._context.throttle(self._quota.wait_ms(now_ms))
