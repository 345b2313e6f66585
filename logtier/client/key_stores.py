"""Java's key and trust stores for a client without Java: keeps PEM, opens PKCS#12, rejects JKS.

Runs before `headwater.logtier.config.client_properties`, which has librdkafka's names; librdkafka has no PKCS#12 trust
stores.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from headwater.logtier.config import ConfigError
from headwater.logtier.security.key_files import cause, pkcs12_certificates

__all__ = ["without_java_stores"]

# A store holds a key and a few certificates; an operating system's whole list of authorities is smaller than this.
STORE_BYTES_MAX: Final = 4 << 20

_PEM: Final = b"-----BEGIN "
_DER_SEQUENCE: Final = b"\x30"
_JAVAS: Final = {b"\xfe\xed\xfe\xed": "JKS", b"\xce\xce\xce\xce": "JCEKS"}


def without_java_stores(properties: Mapping[str, str]) -> dict[str, str]:
    """Returns the properties with `ssl.keystore.*` and `ssl.truststore.*` in forms that need no Java.

    A file's content decides over its declared type, as in Java, which reads a PKCS#12 file declared as JKS. The
    certificates of a PKCS#12 trust store replace its path, so that only this process needs the file.

    Raises:
        ConfigError: a file is unreadable, or only Java can read it; the text names the property and no secret.
    """
    result = dict(properties)
    for store in ("keystore", "truststore"):
        location, kind, password = (f"ssl.{store}.{part}" for part in ("location", "type", "password"))
        path = result.get(location)
        if not path:
            _refuse_java(kind, result.get(kind, ""))
            continue
        held = _held_format(location, path)
        result[kind] = held
        if held == "PEM":
            # Kafka has no password for a whole PEM file: ssl.key.password protects its key.
            result.pop(password, None)
        elif store == "truststore":
            result["ssl.truststore.certificates"] = _trusted(location, path, result.pop(password, None))
            del result[location], result[kind]
    return result


def _held_format(name: str, path: str) -> str:
    """Returns PEM or PKCS12."""
    try:
        with open(path, "rb") as file:
            data = file.read(STORE_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigError(f"{name}: {path} cannot be read: {cause(error)}") from None
    if len(data) > STORE_BYTES_MAX:
        raise ConfigError(f"{name}: {path} is larger than {STORE_BYTES_MAX} bytes")
    java = _JAVAS.get(data[:4])
    if java is not None:
        raise ConfigError(f"{name}: {path} is a {java} key store, {_ONLY_JAVA}")
    if _PEM in data:
        return "PEM"
    if data.startswith(_DER_SEQUENCE):
        return "PKCS12"
    raise ConfigError(f"{name}: {path} is neither PEM nor PKCS#12")


_ONLY_JAVA: Final = (
    "a format of Java's own that nothing else reads: keytool -importkeystore -srckeystore x.jks -destkeystore x.p12 "
    "-deststoretype PKCS12 makes a PKCS#12 file of it"
)


def _refuse_java(name: str, kind: str) -> None:
    if kind.upper() in _JAVAS.values():
        raise ConfigError(f"{name}: {kind.upper()} is {_ONLY_JAVA}")


def _trusted(name: str, path: str, password: str | None) -> str:
    try:
        return pkcs12_certificates(path, password).decode()
    except (OSError, ValueError) as error:
        raise ConfigError(f"{name}: no certificates can be read from {path}: {cause(error)}") from None
