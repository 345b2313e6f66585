"""All listeners of a broker, with their limits, security and advertised addresses."""

import asyncio
import socket
from collections.abc import Callable, Mapping
from typing import Any

from headwater.logtier.config import BrokerConfig, Endpoint
from headwater.logtier.config.cluster import inter_broker_listener
from headwater.logtier.config.security import is_loopback, parse_ip_overrides
from headwater.logtier.network.connection_limits import UNLIMITED, ConnectionRules, HostWait, admit_every_host
from headwater.logtier.network.server import Dispatch, Server, ServerLimits, shared_limits
from headwater.logtier.runtime.clock import Clock
from headwater.logtier.runtime.network import Network
from headwater.logtier.security.listener import ListenerGuard
from headwater.logtier.security.scram import ScramUsers


class ListenError(OSError):
    """A port is not available; the message gives the reason in one line."""

    def __str__(self) -> str:
        return str(self.args[0])


class Listeners:
    """The open ports of one broker. Call each of these once, in this order: `open`, `serve`, `stop`."""

    def __init__(
        self,
        config: BrokerConfig,
        network: Network,
        clock: Clock,
        dispatch: Dispatch,
        users: ScramUsers,
        *,
        host_wait_ms: HostWait = admit_every_host,
        cannot_read: Callable[[Any, OSError], None] = lambda _owner, _error: None,
    ) -> None:
        """Create closed listeners.

        Args:
            host_wait_ms: The quota of new connections by host.
            cannot_read: Called for parts of responses that the disk failed to read: (owner of the slice, disk error).
        """
        self._host_wait_ms = host_wait_ms
        self._cannot_read = cannot_read
        self._config = config
        self._network = network
        self._clock = clock
        self._dispatch = dispatch
        self._users = users
        self._servers: list[Server] = []
        self._guards: list[ListenerGuard] = []
        #: The configs applied last.
        self._altered = config
        #: The limits of single hosts, as configured, and by address.
        self._overrides = config.max_connections_per_ip_overrides
        self._by_host: Mapping[str, int] = {}
        self.advertised: tuple[Endpoint, ...] = ()

    @property
    def connections(self) -> Mapping[str, int]:
        """Number of open connections by listener."""
        return self._limits.by_listener

    @property
    def inside(self) -> Endpoint:
        """The listener for other brokers and this node's own processes (`inter.broker.listener.name`)."""
        name = inter_broker_listener(self._config).name
        return next(listener for listener in self.advertised if listener.name == name)

    def open(self) -> None:
        """Open every port; clients wait until `serve`.

        Raises:
            ListenError: A port is not available.
            ConfigError: Keys or certificates cannot be read.
        """
        config = self._config
        limits = ServerLimits(
            request_bytes_max=config.socket_request_max_bytes,
            connections_max=config.max_connections,
            connections_per_host_max=config.max_connections_per_ip,
            idle_ms_max=config.connections_max_idle_ms,
            queued_bytes_max=config.queued_max_request_bytes,
            buffer_bytes=(config.socket_send_buffer_bytes, config.socket_receive_buffer_bytes),
            backlog=config.socket_listen_backlog_size,
        )
        self._by_host = _limits_by_address(self._overrides)
        shared = shared_limits(limits, _rules(config, self._by_host), self._host_wait_ms)
        self._limits = shared.connections
        told = {listener.name: listener for listener in config.advertised_endpoints}
        advertised = []
        for endpoint in config.bind_endpoints:
            guard = ListenerGuard(config.listener_config(endpoint), self._clock, self._users)
            server = Server(self._network, self._clock, self._dispatch, limits, guard.security, shared)
            server.on_unreadable = lambda error: self._cannot_read(error.owner, error.cause)
            try:
                _, port = server.bind(endpoint.host, endpoint.port)
            except OSError as error:
                raise ListenError(
                    f"cannot listen on {endpoint}: {error.strerror or error}; "
                    "stop the process that uses the port or choose another port (listeners; 0 takes any free port)"
                ) from error
            self._servers.append(server)
            self._guards.append(guard)
            # The configured address, or the listener's own host (as in a certificate), or this machine's name.
            own = endpoint._replace(host=socket.getfqdn() if endpoint.is_everywhere else endpoint.host, port=port)
            advertised.append(told.get(endpoint.name, own))
        self.advertised = tuple(advertised)

    async def limit_connections(self, config: BrokerConfig) -> None:
        """Apply altered limits, of which the last ones win; open connections stay."""
        self._altered = config
        self._limits.change(_rules(config, self._by_host))
        overrides = config.max_connections_per_ip_overrides
        if overrides != self._overrides:
            by_host = await asyncio.to_thread(_limits_by_address, overrides)
            if self._altered is config:
                self._overrides, self._by_host = overrides, by_host
                self._limits.change(_rules(config, by_host))

    def serve(self) -> None:
        """Accept connections."""
        for guard in self._guards:
            guard.start()
        for server in self._servers:
            server.serve()

    def stop(self) -> None:
        """Close the ports and every connection, including those of a failed `open`."""
        for guard in self._guards:
            guard.stop()
        for server in self._servers:
            server.stop()


def _rules(config: BrokerConfig, by_host: Mapping[str, int]) -> ConnectionRules:
    by_listener: dict[str, int] = {}
    rates: dict[str, int] = {}
    for endpoint in config.bind_endpoints:
        own = config.listener_config(endpoint)
        by_listener[endpoint.name] = own.own_value("max.connections") or UNLIMITED
        rates[endpoint.name] = own.own_value("max.connection.creation.rate") or UNLIMITED
    return ConnectionRules(
        config.max_connections,
        config.max_connections_per_ip,
        by_host,
        config.max_connection_creation_rate,
        by_listener,
        rates,
        inter_broker_listener(config).name if len(by_listener) > 1 else None,
    )


def _limits_by_address(overrides: str) -> dict[str, int]:
    """Return the limits of `max.connections.per.ip.overrides` by address; blocks for host name look-ups."""
    by_host: dict[str, int] = {}
    for host, count in parse_ip_overrides(overrides).items():
        # A name may resolve to this machine, which cannot be shut out (see `parse_ip_overrides`).
        by_host |= {address: count for address in _addresses(host) if count or not is_loopback(address)}
    return by_host


def _addresses(host: str) -> list[str]:
    """Return the addresses of a host name; an unknown name is returned itself."""
    try:
        return [str(found[4][0]) for found in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)]
    except (OSError, UnicodeError):  # UnicodeError: an invalid name
        return [host]
