"""The quotas of all clients of a broker and their usage. Pure: times are passed in.

A client above its quota gets a throttle time in its response; the caller mutes its connection for this time (KIP-219).
"""

from collections.abc import Callable, Iterable
from typing import Final, Generic, TypeVar

from headwater.logtier.config.quotas import (
    CONNECTION_CREATION_RATE,
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    ClientQuota,
)
from headwater.logtier.quota.entities import QuotaTable, Scope
from headwater.logtier.quota.rate import WindowedRate
from headwater.logtier.quota.token_bucket import TokenBucket

METERS_MAX: Final = 10_000
"""Maximum number of meters per quota: clients choose their client ids, so that their number is otherwise unlimited."""

Meter = TypeVar("Meter", WindowedRate, TokenBucket)


class ClientQuotas:
    """Quotas and their usage.

    Attributes:
        is_active: Whether any quota other than of connections exists; otherwise no usage needs to be recorded.
        meters_time: Whether any quota of request time exists.
    """

    def __init__(
        self,
        *,
        windows: int = 11,
        window_ms: int = 1000,
        controller_windows: int = 11,
        controller_window_ms: int = 1000,
    ) -> None:
        self._windows = windows
        self._window_ms = window_ms
        self._burst_s = controller_windows * controller_window_ms / 1000
        self._table = QuotaTable()
        self._rates: dict[str, _Meters[WindowedRate]] = {}
        self._buckets: _Meters[TokenBucket] = _Meters()
        self.is_active = False
        self.meters_time = False
        self._limits_connections = False

    def replace(self, quotas: Iterable[ClientQuota]) -> None:
        """Replace the quotas; recorded usage stays."""
        self._table = QuotaTable(quotas)
        keys = self._table.keys()
        self._limits_connections = CONNECTION_CREATION_RATE in keys
        self.meters_time = REQUEST_PERCENTAGE in keys
        self.is_active = bool(keys - {CONNECTION_CREATION_RATE})

    def record_produce(self, user: str, client_id: str, size: int, now_ms: int) -> int:
        """Record the bytes of a produce request; return the throttle time, in ms."""
        return self._record(PRODUCER_BYTE_RATE, user, client_id, size, now_ms)

    def record_fetch(self, user: str, client_id: str, size: int, now_ms: int) -> int:
        """Record the bytes of a fetch response; return the throttle time, in ms.

        If it is above 0, nothing is recorded, and the response must not be sent.
        """
        limit = self._table.limit(user, client_id, CONSUMER_BYTE_RATE)
        if limit is None:
            return 0
        rate = self._rate(CONSUMER_BYTE_RATE, limit.scope, now_ms)
        rate.record(size, now_ms)
        wait_ms = rate.wait_ms(limit.value, now_ms)
        if wait_ms:
            rate.record(-size, now_ms)
        return wait_ms

    def fetch_bytes_max(self, user: str, client_id: str, otherwise: int) -> int:
        """Return the largest fetch response, in bytes, that cannot exceed the quota of an idle client."""
        limit = self._table.limit(user, client_id, CONSUMER_BYTE_RATE)
        if limit is None:
            return otherwise
        return min(otherwise, int(limit.value * (self._windows - 1) * self._window_ms / 1000))

    def record_time(self, user: str, client_id: str, loop_ms: float, now_ms: int) -> int:
        """Record the event loop time of a request; return the throttle time, in ms, at most one window."""
        wait_ms = self._record(REQUEST_PERCENTAGE, user, client_id, loop_ms / 10, now_ms)
        return min(wait_ms, self._window_ms)

    def mutations(self, user: str, client_id: str, now_ms: int, *, is_strict: bool) -> "MutationQuota | None":
        """Return the quota of a request that creates or deletes partitions; None without a quota."""
        limit = self._table.limit(user, client_id, CONTROLLER_MUTATION_RATE)
        if limit is None:
            return None
        bucket = self._buckets.get(limit.scope)
        if bucket is None:
            bucket = TokenBucket(limit.value, burst_s=self._burst_s, now_ms=now_ms)
            self._buckets.add(limit.scope, bucket, lambda each: each.is_full(now_ms))
        bucket.change_rate(limit.value, now_ms)
        return MutationQuota(bucket, is_strict=is_strict)

    def record_connection(self, address: str, now_ms: int) -> int:
        """Record a new connection; return the delay before closing it, in ms, 0 to admit it."""
        if not self._limits_connections:
            return 0
        limit = self._table.limit_of_address(address, CONNECTION_CREATION_RATE)
        if limit is None:
            return 0
        rate = self._rate(CONNECTION_CREATION_RATE, Scope(address, None), now_ms)
        rate.record(1, now_ms)
        wait_ms = rate.wait_ms(limit, now_ms)
        if wait_ms:
            rate.record(-1, now_ms)
        return min(wait_ms, self._window_ms)

    def _record(self, key: str, user: str, client_id: str, value: float, now_ms: int) -> int:
        limit = self._table.limit(user, client_id, key)
        if limit is None:
            return 0
        rate = self._rate(key, limit.scope, now_ms)
        rate.record(value, now_ms)
        return rate.wait_ms(limit.value, now_ms)

    def _rate(self, key: str, scope: Scope, now_ms: int) -> WindowedRate:
        meters = self._rates.setdefault(key, _Meters())
        rate = meters.get(scope)
        if rate is None:
            rate = WindowedRate(self._windows, self._window_ms)
            meters.add(scope, rate, lambda each: each.is_idle(now_ms))
        return rate


class MutationQuota:
    """The partition mutations that one request may still perform.

    A strict quota rejects mutations when no tokens are left; a permissive one (for older clients, which do not know the
    error) permits all and throttles the client.
    """

    def __init__(self, bucket: TokenBucket, *, is_strict: bool) -> None:
        self._bucket = bucket
        self._is_strict = is_strict
        self.is_exceeded = False

    def take(self, partitions: int, now_ms: int) -> bool:
        """Take tokens for partitions to be created or deleted; False if the quota rejects them."""
        if self._is_strict and self._bucket.wait_ms(now_ms):
            self.is_exceeded = True
            return False
        self._bucket.take(partitions, now_ms)
        return True

    def wait_ms(self, now_ms: int) -> int:
        """Return the throttle time, in ms: after a rejection, or (permissive) after the tokens were overdrawn."""
        return self._bucket.wait_ms(now_ms) if self.is_exceeded or not self._is_strict else 0


class _Meters(Generic[Meter]):
    """Meters by scope, least recently used first; beyond METERS_MAX unused ones are removed, or the oldest."""

    def __init__(self) -> None:
        self._by_scope: dict[Scope, Meter] = {}

    def get(self, scope: Scope) -> Meter | None:
        """Return the meter of a scope and mark it as used."""
        meter = self._by_scope.pop(scope, None)
        if meter is not None:
            self._by_scope[scope] = meter
        return meter

    def add(self, scope: Scope, meter: Meter, is_unused: Callable[[Meter], bool]) -> None:
        """Store a meter."""
        if len(self._by_scope) >= METERS_MAX:
            unused = [each for each, known in self._by_scope.items() if is_unused(known)]
            for each in unused or [next(iter(self._by_scope))]:
                del self._by_scope[each]
        self._by_scope[scope] = meter
