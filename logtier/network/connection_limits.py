"""Limits of connections in total, per listener and per host, and of the rate of new connections; pure."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

UNLIMITED: Final = 2**31 - 1


@dataclass(frozen=True, slots=True)
class ConnectionRules:
    """The connection limits of a broker.

    Attributes:
        connections_max: Open connections on all listeners (`max.connections`).
        per_host_max: Open connections of one host (`max.connections.per.ip`).
        by_host_max: Limits of single hosts (`max.connections.per.ip.overrides`).
        per_second_max: New connections per second on all listeners (`max.connection.creation.rate`).
        by_listener_max: Limits of single listeners (`listener.name.<name>.max.connections`).
        by_listener_per_second_max: Rates of single listeners (`listener.name.<name>.max.connection.creation.rate`).
        protected_listener: The listener for brokers, None if it is the only one. The limits of the broker as a whole do
            not hold for it, as in Kafka: clients on the others would cut the broker off from its cluster.
    """

    connections_max: int = UNLIMITED
    per_host_max: int = UNLIMITED
    by_host_max: Mapping[str, int] = field(default_factory=dict)
    per_second_max: int = UNLIMITED
    by_listener_max: Mapping[str, int] = field(default_factory=dict)
    by_listener_per_second_max: Mapping[str, int] = field(default_factory=dict)
    protected_listener: str | None = None


class _Rate:
    """A token bucket that fills at `per_second` and holds the tokens of one second."""

    __slots__ = ("_left", "_now_ms", "per_second")

    def __init__(self, per_second: int) -> None:
        self.per_second = per_second
        self._left = float(per_second)
        self._now_ms: int | None = None

    def take(self, now_ms: int) -> int:
        """Count a connection; return the delay until the next one may come, in ms."""
        passed_ms = 0 if self._now_ms is None else now_ms - self._now_ms
        self._now_ms = now_ms
        self._left = min(float(self.per_second), self._left + passed_ms * self.per_second / 1000) - 1
        return 0 if self._left >= 1 else max(1, int((1 - self._left) * 1000 / self.per_second))


def _rate(per_second_max: int, before: _Rate | None) -> _Rate | None:
    """Return the rate of a limit, None for no limit; `before` is reused if its limit is the same."""
    if per_second_max >= UNLIMITED:
        return None
    return before if before is not None and before.per_second == per_second_max else _Rate(per_second_max)


HostWait: TypeAlias = Callable[[str, int], int]
"""Called with the host of each new connection and the monotonic time in ms; returns the delay, in ms, before closing a
connection that exceeds its host's rate quota, 0 to admit it."""


def admit_every_host(host: str, now_ms: int) -> int:  # noqa: ARG001 (no host has a quota)
    """Return the delay of a broker without quotas of connections."""
    return 0


class ConnectionLimits:
    """Counts the connections of a broker, for all its listeners.

    Invariant: an admitted connection counts until it is released.
    """

    def __init__(self, rules: ConnectionRules, host_wait_ms: HostWait = admit_every_host) -> None:
        self._rules = rules
        self.host_wait_ms = host_wait_ms
        self._total = 0
        self._by_host: dict[str, int] = {}
        self._by_listener: dict[str, int] = {}
        self._rate: _Rate | None = None
        self._rate_by_listener: dict[str, _Rate | None] = {}
        self.change(rules)

    def change(self, rules: ConnectionRules) -> None:
        """Apply other limits; open connections stay, and unchanged rates keep their state."""
        self._rules = rules
        self._rate = _rate(rules.per_second_max, self._rate)
        self._rate_by_listener = {
            listener: _rate(per_second_max, self._rate_by_listener.get(listener))
            for listener, per_second_max in rules.by_listener_per_second_max.items()
        }

    @property
    def by_listener(self) -> Mapping[str, int]:
        """Number of open connections by listener."""
        return self._by_listener

    def admit(self, listener: str, host: str) -> str | None:
        """Count a new connection and return None, or return the reason for rejecting it, without counting it."""
        rules = self._rules
        if self._total >= rules.connections_max and listener != rules.protected_listener:
            return f"{self._total} are open (max.connections)"
        of_listener = self._by_listener.get(listener, 0)
        if of_listener >= rules.by_listener_max.get(listener, UNLIMITED):
            return f"{of_listener} are open through {listener} (listener.name.{listener.lower()}.max.connections)"
        of_host = self._by_host.get(host, 0)
        if host in rules.by_host_max:
            if of_host >= rules.by_host_max[host]:
                return f"the host has {of_host} open (max.connections.per.ip.overrides)"
        elif of_host >= rules.per_host_max:
            return f"the host has {of_host} open (max.connections.per.ip)"
        self._total += 1
        self._by_listener[listener] = of_listener + 1
        self._by_host[host] = of_host + 1
        return None

    def release(self, listener: str, host: str) -> None:
        """Stop counting an admitted connection that ended."""
        self._total -= 1
        self._by_listener[listener] -= 1
        self._by_host[host] -= 1
        if not self._by_host[host]:
            del self._by_host[host]

    def pause_ms(self, listener: str, now_ms: int) -> int:
        """Count a new connection, admitted or not; return the time for which the listener should pause, in ms."""
        rate = None if listener == self._rules.protected_listener else self._rate
        pause_ms = 0 if rate is None else rate.take(now_ms)
        of_listener = self._rate_by_listener.get(listener)
        return pause_ms if of_listener is None else max(pause_ms, of_listener.take(now_ms))
