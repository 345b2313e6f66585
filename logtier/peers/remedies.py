"""What an administrator can do about a connection between brokers that one of the two refuses. Pure."""

from __future__ import annotations

import ssl
from typing import Final

from headwater.logtier.client.errors import AuthenticationError, UnsupportedMechanismError
from headwater.logtier.client.security import ClientSecurity
from headwater.logtier.config import ConfigError
from headwater.logtier.runtime.tls_stream import TlsError
from headwater.logtier.security.key_files import tls_reason

__all__ = ["UNAUTHORIZED_REMEDY", "remedy"]

UNAUTHORIZED_REMEDY: Final = (
    "add the principal of this broker to super.users of all brokers, or allow it ClusterAction on the cluster"
)
"""What to do about requests that another broker does not authorize."""

#: Codes of OpenSSL's X509_V_ERR_*.
_NOT_YET_VALID: Final = 9
_HAS_EXPIRED: Final = 10
_MISMATCHES: Final = frozenset({62, 64})


def remedy(failure: AuthenticationError, security: ClientSecurity) -> str:
    """Return what to do about a refused connection to another broker.

    Args:
        failure: Its cause is a TlsError, the ConfigError of a file, or None for a refused login.
        security: The settings of the connection.
    """
    cause = failure.__cause__
    if isinstance(cause, ConfigError):
        return "correct the file or the config"
    tls = cause.__cause__ if isinstance(cause, TlsError) else None
    if isinstance(tls, ssl.SSLCertVerificationError):
        return _of_untrusted(tls.verify_code, security)
    if isinstance(tls, ssl.SSLError):
        return _of_refused(tls_reason(tls), security)
    return _of_login(failure, security)


def _of_untrusted(verify_code: int, security: ClientSecurity) -> str:
    """Return the remedy where the certificate of the other broker is not accepted here.

    >>> _of_untrusted(20, ClientSecurity("SSL", ca_location="ca.pem"))
    "ca.pem must hold the authority of that broker's certificate"
    """
    if verify_code == _HAS_EXPIRED:
        return "renew the certificate of that broker"
    if verify_code == _NOT_YET_VALID:
        return "compare the clocks of the two machines"
    if verify_code in _MISMATCHES:
        return "the certificate of that broker must name the host of its advertised.listeners"
    trusted = security.ca_location or security.truststore_location or "ssl.truststore.certificates"
    return f"{trusted} must hold the authority of that broker's certificate"


def _of_refused(reason: str, security: ClientSecurity) -> str:
    """Return the remedy where the other broker does not accept the handshake, by the name of its alert.

    >>> security = ClientSecurity("SSL", certificate_location="broker.pem")
    >>> _of_refused("ssl/tls alert certificate expired", security)
    'renew the certificate in broker.pem'
    >>> _of_refused("tlsv1 alert unknown ca", security)
    'the certificate in broker.pem must be signed by an authority that the other broker trusts'
    """
    own = security.certificate_location or security.keystore_location or "ssl.keystore.certificate.chain"
    if "expired" in reason:
        return f"renew the certificate in {own}"
    if "certificate" in reason or "unknown ca" in reason:
        return f"the certificate in {own} must be signed by an authority that the other broker trusts"
    return "both brokers need the same security protocol, and a version of TLS and a cipher suite in common"


def _of_login(failure: AuthenticationError, security: ClientSecurity) -> str:
    """Return the remedy of a refused login.

    >>> scram = ClientSecurity("SASL_SSL", mechanism="SCRAM-SHA-512", username="broker", password="wrong")
    >>> _of_login(AuthenticationError("broker 2 refuses user 'broker'"), scram)
    "correct the password in this broker's sasl.jaas.config, or set it: headwater user add broker -m SCRAM-SHA-512"
    """
    if isinstance(failure, UnsupportedMechanismError):
        return f"add {security.mechanism} to the sasl.enabled.mechanisms of that broker's listener"
    here = "correct the password in this broker's sasl.jaas.config"
    if security.mechanism == "PLAIN":
        return f"{here}, or user_{security.username} in that of the other broker, and restart it"
    return f"{here}, or set it: headwater user add {security.username} -m {security.mechanism}"
