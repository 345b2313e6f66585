"""The TLS context of a client: trusted authorities, key and certificates. Reads files, so it may block."""

from __future__ import annotations

import os
import ssl
from typing import Final

from headwater.logtier.client.security import ClientSecurity
from headwater.logtier.config import ConfigError
from headwater.logtier.security.key_files import as_file, cause, pkcs12_certificates, pkcs12_key

__all__ = ["client_context"]

# A key and a chain of certificates are a few pages of text.
PEM_BYTES_MAX: Final = 1 << 20


def client_context(security: ClientSecurity) -> ssl.SSLContext:
    """Builds the TLS context; raises ConfigError with one line without secrets."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_COMPRESSION
    context.check_hostname = security.verifies_certificate and security.verifies_host
    context.verify_mode = ssl.CERT_REQUIRED if security.verifies_certificate else ssl.CERT_NONE
    if security.cipher_suites is not None:
        try:
            context.set_ciphers(security.cipher_suites.replace(",", ":"))
        except ssl.SSLError:
            raise ConfigError(f"ssl.cipher.suites: none of {security.cipher_suites[:200]} is known") from None
    if security.verifies_certificate:
        _load_trusted(context, security)
    _load_key(context, security)
    return context


def _load_trusted(context: ssl.SSLContext, security: ClientSecurity) -> None:
    location = security.ca_location
    try:
        if location is not None and os.path.isdir(location):
            context.load_verify_locations(capath=location)
        elif location is not None:
            context.load_verify_locations(location)
        elif security.ca_pem is not None:
            context.load_verify_locations(cadata=security.ca_pem)
        elif security.truststore_location is not None:
            location = security.truststore_location
            trusted = pkcs12_certificates(location, security.truststore_password)
            context.load_verify_locations(cadata=trusted.decode())
        else:
            context.load_default_certs()
    except (OSError, ValueError) as error:
        where = location or "ssl.ca.pem"
        raise ConfigError(f"no certificates to trust can be read from {where}: {cause(error)}") from None


def _load_key(context: ssl.SSLContext, security: ClientSecurity) -> None:
    where = security.keystore_location or security.certificate_location or "ssl.certificate.pem"
    try:
        if security.keystore_location is not None:
            stored = pkcs12_key(security.keystore_location, security.keystore_password)
            pem = stored.key + stored.chain
        else:
            chain = _pem(security.certificate_pem, security.certificate_location)
            key = _pem(security.key_pem, security.key_location)
            if chain is None:
                if key is not None:
                    raise ValueError("there is a key, but no certificate of it")
                return
            pem = chain if key is None else key + b"\n" + chain
        with as_file(pem) as path:
            # Without a password callback OpenSSL would prompt on the terminal.
            context.load_cert_chain(path, password=lambda: security.key_password or "")
    except (OSError, ValueError) as error:
        raise ConfigError(f"no private key with its certificates can be read from {where}: {cause(error)}") from None


def _pem(text: str | None, location: str | None) -> bytes | None:
    if text is not None:
        return text.encode()
    if location is None:
        return None
    with open(location, "rb") as file:
        data = file.read(PEM_BYTES_MAX + 1)
    if len(data) > PEM_BYTES_MAX:
        raise ValueError(f"it is larger than {PEM_BYTES_MAX} bytes")
    return data
