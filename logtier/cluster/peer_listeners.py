"""Through which listener each other broker is reached, and how this broker connects to it."""

from __future__ import annotations

import logging

from headwater.logtier.client.security import ClientSecurity
from headwater.logtier.config import BrokerConfig, ConfigError, Endpoint
from headwater.logtier.config.cluster import inter_broker_listener
from headwater.logtier.metadata.image import BrokerRegistration
from headwater.logtier.peers.inter_broker_security import inter_broker_security

__all__ = ["PeerListeners"]

log = logging.getLogger(__name__)


class PeerListeners:
    """The listeners by which other brokers can be reached.

    A broker serves requests of brokers at its own inter-broker listener only. While `inter.broker.listener.name` is
    changed in a rolling restart it is another one than here, so the registration of the other broker decides. All
    brokers have the same listeners: this broker's configs of that listener say how to connect.

    Invariant: there is a security for each listener that `name` returns.
    """

    def __init__(self, config: BrokerConfig) -> None:
        """Read the securities; ConfigError for a missing login or key of this broker's own inter-broker listener."""
        own = inter_broker_listener(config)
        self._own = own.name
        self._securities = {own.name: _security(config, own)}
        for listener in config.bind_endpoints:
            if listener.name == own.name:
                continue
            try:
                self._securities[listener.name] = _security(config, listener)
            except ConfigError as error:
                log.debug("listener %s leads to no other broker: %s", listener.name, error)
        #: Epochs of registrations with another listener that are logged, by broker.
        self._logged: dict[int, int] = {}

    def name(self, broker: BrokerRegistration) -> str:
        """Return the listener by which to reach a broker: its own one for brokers, if it is known here."""
        registered = broker.inter_broker_listener
        if registered == self._own or registered not in self._securities:
            return self._own
        if self._logged.get(broker.id) != broker.epoch:
            self._logged[broker.id] = broker.epoch
            log.warning(
                "broker %d serves brokers at listener %s, and this broker at %s; set the same "
                "inter.broker.listener.name on all brokers",
                broker.id,
                registered,
                self._own,
            )
        return registered

    def security(self, broker: BrokerRegistration | None) -> ClientSecurity:
        """Return TLS and login of connections to a broker."""
        return self._securities[self._own if broker is None else self.name(broker)]


def _security(config: BrokerConfig, listener: Endpoint) -> ClientSecurity:
    of_listener = config.listener_config(listener)
    return inter_broker_security(
        of_listener,
        config.sasl_mechanism_inter_broker_protocol,
        verifies_host=of_listener.value("ssl.endpoint.identification.algorithm") != "",
    )
