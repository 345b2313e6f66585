"""Errors of the connections to other brokers, besides those of the client."""

from __future__ import annotations

from headwater.logtier.client.errors import ClientError

__all__ = ["PeerBusyError", "PeersClosedError"]


class PeerBusyError(ClientError):
    """Too many requests wait for one broker."""


class PeersClosedError(ClientError):
    """All connections to other brokers are closed for good: this broker stops."""
