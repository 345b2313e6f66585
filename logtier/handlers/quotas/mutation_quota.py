"""The quota of partition mutations for one request (KIP-599)."""

from typing import Final

from headwater.logtier.handlers.context import RequestContext
from headwater.logtier.protocol.errors import ErrorCode, KafkaError

NEVER_STRICT: Final = 2**15
"""As the first strict version: all versions permit the request and throttle the client afterwards."""


class Mutations:
    """Counts the partition mutations of a request.

    From version `strict_from` on, mutations above the quota are rejected with a throttle time; clients of earlier
    versions do not know the error, and are served and then throttled.
    """

    def __init__(self, context: RequestContext, strict_from: int) -> None:
        self._context = context
        self._quota = context.mutations(strict_from)

    def count(self, partitions: int) -> None:
        """Count partitions before their creation or deletion; KafkaError if the quota rejects them."""
        now_ms = self._context.services.clock.monotonic_ms()
        if self._quota is not None and not self._quota.take(partitions, now_ms):
            raise KafkaError(ErrorCode.throttling_quota_exceeded, "The throttling quota has been exceeded.")

    def throttle(self) -> None:
        """Throttle the client, after rejected and permitted mutations."""
        if self._quota is not None:
            now_ms = self._context.services.clock.monotonic_ms()
            self._context.throttle(self._quota.wait_ms(now_ms))
