"""The first requests on a connection to a broker: ApiVersions, then the SASL exchange. Sans-IO."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Any, Final, NamedTuple

from headwater.logtier.client.authentication import authentication_steps
from headwater.logtier.client.connection import Request
from headwater.logtier.client.errors import UnsupportedVersionError, broker_error
from headwater.logtier.client.messages import API_NAMES, ApiKey, kio_request, negotiate
from headwater.logtier.client.security import ClientSecurity

__all__ = ["UNADVERTISED", "LoggedIn", "check_supported", "login_steps"]

#: APIs between brokers. A broker serves them, and version 2 of WriteTxnMarkers, on the inter-broker listener only and
#: never lists them.
UNADVERTISED: Final = frozenset(
    {
        ApiKey.ALTER_PARTITION,
        ApiKey.ENVELOPE,
        ApiKey.BROKER_HEARTBEAT,
        ApiKey.ALLOCATE_PRODUCER_IDS,
        ApiKey.ASSIGN_REPLICAS_TO_DIRS,
        ApiKey.WRITE_TXN_MARKERS,
    }
)
#: Limit of SCRAM iterations: the highest number that a broker stores. The event loop waits for their computation.
ITERATIONS_MAX: Final = 16_384


class LoggedIn(NamedTuple):
    """The outcome: the versions of the broker's APIs, and the session's lifetime, 0 for unlimited."""

    versions: Mapping[int, tuple[int, int]]
    lifetime_ms: int


def login_steps(
    security: ClientSecurity,
    address: str,
    nonce: str,
    versions: Mapping[int, tuple[int, int]] | None = None,
) -> Generator[Request[Any], Any, LoggedIn]:
    """Yield the requests of a login, each after the response to the previous one.

    Args:
        nonce: A printable text that is unpredictable and used only once.
        versions: The broker's versions, to renew a session (KIP-368).

    Raises:
        AuthenticationError: The broker or the client rejects the other's credential.
        BrokerError: ApiVersions failed.
        UnsupportedVersionError: The broker's versions of the SASL requests are unknown here.
    """
    if versions is None:
        # Every broker supports version 0.
        response = yield kio_request(ApiKey.API_VERSIONS, 0, {})
        if response.error_code:
            raise broker_error(int(response.error_code), f"ApiVersions at {address}")
        versions = {int(api.api_key): (int(api.min_version), int(api.max_version)) for api in response.api_keys}
    if not security.uses_sasl:
        return LoggedIn(versions, 0)
    known = versions
    lifetime_ms = yield from authentication_steps(
        lambda api_key: negotiate(api_key, known), security, address, nonce, iterations_max=ITERATIONS_MAX
    )
    return LoggedIn(versions, lifetime_ms)


def check_supported(request: Request[Any], versions: Mapping[int, tuple[int, int]], address: str) -> None:
    """Raise UnsupportedVersionError for a request that the broker does not serve.

    A broker closes the connection upon such a request, and with it all requests in flight.
    """
    if request.api_key in UNADVERTISED:
        return
    low, high = versions.get(request.api_key, (0, -1))
    if not low <= request.api_version <= high:
        name = API_NAMES.get(request.api_key, f"API {request.api_key}")
        offered = f"versions {low}-{high}" if low <= high else "none"
        raise UnsupportedVersionError(f"{address} does not serve {name} version {request.api_version} ({offered})")
