"""Reads private keys and certificates from files: PEM or PKCS#12. For servers and clients; may block."""

import contextlib
import os
import ssl
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class StoredKey:
    """A private key and its certificates, in PEM."""

    key: bytes = field(repr=False)
    chain: bytes


def pkcs12_key(path: str, password: str | None) -> StoredKey:
    """Return the key of a PKCS#12 file with its certificates; OSError, ValueError."""
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, pkcs12

    with open(path, "rb") as file:
        store = pkcs12.load_pkcs12(file.read(), None if password is None else password.encode())
    if store.key is None or store.cert is None:
        raise ValueError("it holds no private key with its certificate")
    key = store.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    chain = [store.cert.certificate, *(other.certificate for other in store.additional_certs)]
    return StoredKey(key, b"".join(certificate.public_bytes(Encoding.PEM) for certificate in chain))


def pkcs12_certificates(path: str, password: str | None) -> bytes:
    """Return all certificates of a PKCS#12 file, in PEM; OSError, ValueError."""
    from cryptography.hazmat.primitives.serialization import Encoding, pkcs12

    with open(path, "rb") as file:
        store = pkcs12.load_pkcs12(file.read(), None if password is None else password.encode())
    certificates = [*([store.cert] if store.cert is not None else []), *store.additional_certs]
    if not certificates:
        raise ValueError("it holds no certificates")
    return b"".join(one.certificate.public_bytes(Encoding.PEM) for one in certificates)


@contextlib.contextmanager
def as_file(data: bytes) -> Iterator[str]:
    """Provide a path from which OpenSSL can read `data`; where the system allows it, nothing is written to a disk."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("headwater-key", os.MFD_CLOEXEC)
        try:
            os.write(descriptor, data)
            yield f"/proc/self/fd/{descriptor}"
        finally:
            os.close(descriptor)
    else:
        with tempfile.NamedTemporaryFile() as file:
            file.write(data)
            file.flush()
            yield file.name


def cause(error: Exception) -> str:
    """Return the reason why a file could not be used, in a few words."""
    if isinstance(error, ssl.SSLError):
        return f"{tls_reason(error)}; is it PEM, and is the password right?"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error)


def tls_reason(error: ssl.SSLError) -> str:
    """Return OpenSSL's message without the location in its sources.

    >>> tls_reason(ssl.SSLError(1, "[SSL: WRONG_VERSION_NUMBER] wrong version number (_ssl.c:1000)"))
    'wrong version number'
    """
    return str(error.strerror or error).partition(" (_ssl")[0].rpartition("] ")[2]
