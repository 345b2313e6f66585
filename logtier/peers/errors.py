"""Errors of the connections to other brokers, besides those of the client."""

from __future__ import annotations

from headwater.logtier.client.errors import ClientError

__all__ = ["PeerBusyError", "PeersClosedError"]


class PeerBusyError(ClientError):
    """Too many requests wait for one broker."""


class PeersClosedError(ClientError):
    """The connections to a broker, or all connections, are closed for good."""
