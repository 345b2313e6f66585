"""The quotas of all clients of a broker, and what each client has used. Pure: times are passed in.

A client that used more than its quota is told how long to wait; whoever calls keeps its connection from being read for
so long (KIP-219).
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
"""Clients whose use of one quota is remembered: client ids come from clients, so their number has no other limit."""

Meter = TypeVar("Meter", WindowedRate, TokenBucket)


class ClientQuotas:
    """Quotas and their use.

    Attributes:
        is_active: Whether any client has a quota; as long as none has, nothing need be asked or recorded.
        meters_time: Whether any client has one for request time.
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
        """Take over other quotas; what was used so far still counts."""
        self._table = QuotaTable(quotas)
        keys = self._table.keys()
        self._limits_connections = CONNECTION_CREATION_RATE in keys
        self.meters_time = REQUEST_PERCENTAGE in keys
        self.is_active = bool(keys - {CONNECTION_CREATION_RATE})

    def record_produce(self, user: str, client_id: str, size: int, now_ms: int) -> int:
        """Count the bytes of a produce request; how long the client has to wait."""
        return self._record(PRODUCER_BYTE_RATE, user, client_id, size, now_ms)

    def record_fetch(self, user: str, client_id: str, size: int, now_ms: int) -> int:
        """Count the bytes of a fetch response, unless the client has to wait: then they must not be sent."""
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
        """Most bytes of a fetch response that need not make the client wait, however long it was silent."""
        limit = self._table.limit(user, client_id, CONSUMER_BYTE_RATE)
        if limit is None:
            return otherwise
        return min(otherwise, int(limit.value * (self._windows - 1) * self._window_ms / 1000))

    def record_time(self, user: str, client_id: str, loop_ms: float, now_ms: int) -> int:
        """Count the event loop's time that a request took; how long the client has to wait, at most one window."""
        wait_ms = self._record(REQUEST_PERCENTAGE, user, client_id, loop_ms / 10, now_ms)
        return min(wait_ms, self._window_ms)

    def mutations(self, user: str, client_id: str, now_ms: int, *, is_strict: bool) -> "MutationQuota | None":
        """The quota of one request that creates or deletes partitions; None where the client has none."""
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
        """Count a new connection; how long it has to wait until it is closed, 0 for one that is welcome."""
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
    """What one request may still do to topics.

    A strict one refuses when the client has no tokens left; a permissive one (of older clients, which would not
    understand) lets everything happen and makes the client wait.
    """

    def __init__(self, bucket: TokenBucket, *, is_strict: bool) -> None:
        self._bucket = bucket
        self._is_strict = is_strict
        self.is_exceeded = False

    def take(self, partitions: int, now_ms: int) -> bool:
        """Count partitions that are created or deleted; False where they must not be."""
        if self._is_strict and self._bucket.wait_ms(now_ms):
            self.is_exceeded = True
            return False
        self._bucket.take(partitions, now_ms)
        return True

    def wait_ms(self, now_ms: int) -> int:
        """How long the client has to wait: where it was refused, or (permissive) took more than there was."""
        return self._bucket.wait_ms(now_ms) if self.is_exceeded or not self._is_strict else 0


class _Meters(Generic[Meter]):
    """Meters by scope, the one used last at the end; beyond METERS_MAX unused ones go, else the one unused longest."""

    def __init__(self) -> None:
        self._by_scope: dict[Scope, Meter] = {}

    def get(self, scope: Scope) -> Meter | None:
        """The meter of a scope, which is in use from now on."""
        meter = self._by_scope.pop(scope, None)
        if meter is not None:
            self._by_scope[scope] = meter
        return meter

    def add(self, scope: Scope, meter: Meter, is_unused: Callable[[Meter], bool]) -> None:
        """Remember a meter."""
        if len(self._by_scope) >= METERS_MAX:
            unused = [each for each, known in self._by_scope.items() if is_unused(known)]
            for each in unused or [next(iter(self._by_scope))]:
                del self._by_scope[each]
        self._by_scope[scope] = meter
