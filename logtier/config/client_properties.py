"""Client properties files (`--command-config`): `security.protocol`, `sasl.*` and `ssl.*`, as in Kafka's tools.

A file holds librdkafka's names, or the Java client's names for which librdkafka has an equivalent, so that the same
file serves the tools of both. Only this module reads such files: librdkafka's clients use the result directly, our own
client converts it to a `ClientSecurity`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Final

from headwater.logtier.config.definition import ConfigError
from headwater.logtier.config.jaas import login_options

FILE_BYTES_MAX: Final = 1 << 20
"""A client properties file is a page of text."""

_PREFIXES: Final = ("security.", "sasl.", "ssl.", "enable.ssl.", "enable.sasl.", "https.")
_OTHERS: Final = ("bootstrap.servers", "client.id", "client.rack", "broker.address.family")
_IGNORED: Final = ("sasl.login.callback.handler.class", "sasl.client.callback.handler.class", "ssl.protocol")
_JAVAS: Final = (
    "security.providers",
    "ssl.enabled.protocols",
    "ssl.engine.factory.class",
    "ssl.keymanager.algorithm",
    "ssl.provider",
    "ssl.secure.random.implementation",
    "ssl.trustmanager.algorithm",
)
"""Properties that only the Java client supports."""


class ClientConfigError(ValueError):
    """An invalid client properties file; the message is one line and holds no value of the file."""


def read_client_config(path: str) -> dict[str, str]:
    """Read a file of `name=value` lines and return librdkafka's properties.

    Raises:
        ClientConfigError: The file cannot be read, or a property is invalid.
    """
    try:
        if os.path.getsize(path) > FILE_BYTES_MAX:
            raise ClientConfigError(f"{path}: the file is larger than {FILE_BYTES_MAX} bytes")
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except OSError as error:
        raise ClientConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ClientConfigError(f"{path}: is not UTF-8 text") from None
    try:
        return librdkafka_properties(parse_properties(text))
    except ConfigError as error:
        raise ClientConfigError(f"{path}: {error}") from None


def parse_properties(text: str) -> dict[str, str]:
    """Parse the text of a Java properties file; ConfigError for a line without a name and `=`.

    >>> parse_properties("# who we are\\nsasl.mechanism = PLAIN\\nsasl.jaas.config=a \\\\\\n  b")
    {'sasl.mechanism': 'PLAIN', 'sasl.jaas.config': 'a b'}
    """
    properties: dict[str, str] = {}
    begun = ""
    for number, line in enumerate(text.splitlines(), 1):
        line = begun + (line.lstrip() if begun else line.strip())
        if not line or line.startswith(("#", "!")):
            continue
        if line.endswith("\\"):
            begun = line[:-1]
            continue
        begun = ""
        name, separator, value = line.partition("=")
        if not separator or not name.strip():
            raise ConfigError(f"line {number} is not of the form name=value")
        properties[name.strip()] = value.strip()
    return properties


def librdkafka_properties(properties: Mapping[str, str]) -> dict[str, str]:
    """Translate the Java client's names to librdkafka's; ConfigError for a property that is not about connections.

    >>> librdkafka_properties({"security.protocol": "SSL", "ssl.truststore.location": "ca.pem"})
    {'security.protocol': 'SSL', 'ssl.ca.location': 'ca.pem'}
    """
    translated: dict[str, str] = {}
    for name, value in properties.items():
        translate = _TRANSLATED.get(name)
        if translate is not None:
            translated.update(translate(value, properties))
        elif name in _JAVAS:
            raise ConfigError(f"{name}: only Java's clients can do that")
        elif name.startswith(_PREFIXES) or name in _OTHERS:
            if name not in _IGNORED:
                translated[name] = value
        else:
            raise ConfigError(f"{name[:100]!r} does not say how to connect; known are security.*, sasl.* and ssl.*")
    return translated


def _jaas(value: str, _: Mapping[str, str]) -> dict[str, str]:
    _module, options = login_options("sasl.jaas.config", value)
    return {f"sasl.{name}": options[name] for name in ("username", "password") if name in options}


def _truststore(value: str, properties: Mapping[str, str]) -> dict[str, str]:
    if properties.get("ssl.truststore.type", "PEM") != "PEM":
        raise ConfigError("ssl.truststore.type: only PEM can be read")
    return {"ssl.ca.location": value}


def _truststore_password(_value: str, _properties: Mapping[str, str]) -> dict[str, str]:
    raise ConfigError("ssl.truststore.password: only PEM can be read, which has none")


def _keystore(value: str, properties: Mapping[str, str]) -> dict[str, str]:
    match properties.get("ssl.keystore.type", "PEM"):
        case "PEM":
            return {"ssl.certificate.location": value, "ssl.key.location": value}
        case "PKCS12":
            return {"ssl.keystore.location": value}
    raise ConfigError("ssl.keystore.type: only PEM and PKCS12 can be read")


def _nothing(_value: str, _properties: Mapping[str, str]) -> dict[str, str]:
    return {}


_TRANSLATED: Final[Mapping[str, Callable[[str, Mapping[str, str]], dict[str, str]]]] = {
    "sasl.jaas.config": _jaas,
    "ssl.truststore.location": _truststore,
    "ssl.truststore.certificates": lambda value, _: {"ssl.ca.pem": value},
    "ssl.truststore.type": _nothing,
    "ssl.truststore.password": _truststore_password,
    "ssl.keystore.location": _keystore,
    "ssl.keystore.type": _nothing,
    "ssl.keystore.key": lambda value, _: {"ssl.key.pem": value},
    "ssl.keystore.certificate.chain": lambda value, _: {"ssl.certificate.pem": value},
    # Java's empty value is librdkafka's `none`.
    "ssl.endpoint.identification.algorithm": lambda value, _: {
        "ssl.endpoint.identification.algorithm": value or "none"
    },
}
