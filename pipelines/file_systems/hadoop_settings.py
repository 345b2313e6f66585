"""Hadoop's settings from `core-site.xml` and `hdfs-site.xml`, and the addresses of NameNodes among them. Pure.

Settings that a pipeline gives as `spark.hadoop.NAME` come after those of the files.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Mapping
from typing import Final

__all__ = [
    "SITE_FILES",
    "HadoopSettingsError",
    "http_addresses",
    "of_spark",
    "parse_site",
    "qualified",
    "rpc_addresses",
]

SITE_FILES: Final = ("core-site.xml", "hdfs-site.xml")
_SPARK: Final = "spark.hadoop."
_HTTP_PORT: Final = 9870
_HTTPS_PORT: Final = 9871
_RPC_PORT: Final = 8020
_VARIABLE: Final = re.compile(r"\$\{([^}$\s]+)\}")
_DEPTH_MAX: Final = 20  # of settings that name others, as in Hadoop
_ANY: Final = ("0.0.0.0", "")  # noqa: S104 - what a server listens on, which is no address of it


class HadoopSettingsError(ValueError):
    """A configuration file or a setting is wrong; the message is one line."""


def parse_site(text: bytes) -> dict[str, str]:
    """Return the properties of a configuration file. Raises HadoopSettingsError.

    >>> parse_site(b"<configuration><property><name>a</name><value> b </value></property></configuration>")
    {'a': 'b'}
    """
    if b"<!DOCTYPE" in text or b"<!ENTITY" in text:
        raise HadoopSettingsError("it declares a document type, which is not supported")
    try:
        root = ET.fromstring(text)  # noqa: S314 - without a document type, no entity can be declared
    except ET.ParseError as error:
        raise HadoopSettingsError(f"it is no XML: {error}") from None
    found = {}
    for each in root.iter("property"):
        name, value = each.findtext("name"), each.findtext("value")
        if name is not None and value is not None:
            found[name.strip()] = value.strip()
    return found


def of_spark(conf: Mapping[str, str]) -> dict[str, str]:
    """Return Hadoop's settings among Spark's.

    >>> of_spark({"spark.hadoop.fs.s3a.endpoint": "http://a", "spark.master": "local"})
    {'fs.s3a.endpoint': 'http://a'}
    """
    return {name.removeprefix(_SPARK): value for name, value in conf.items() if name.startswith(_SPARK)}


def _value(settings: Mapping[str, str], name: str) -> str:
    """Return a setting, with the settings that it names in the form `${name}`; '' if it is missing."""
    value = settings.get(name, "")
    for _ in range(_DEPTH_MAX):
        replaced = _VARIABLE.sub(lambda found: settings.get(found[1], found[0]), value)
        if replaced == value:
            break
        value = replaced
    return value.strip()


def qualified(url: str, settings: Mapping[str, str]) -> tuple[str, str]:
    """Return the authority (a nameservice, or a NameNode) and the path of a URL. Raises HadoopSettingsError.

    >>> qualified("hdfs://nn:8020/lake", {}), qualified("hdfs:///lake", {"fs.defaultFS": "hdfs://flights"})
    (('nn:8020', '/lake'), ('flights', '/lake'))
    """
    rest = url.partition(":")[2]
    if not rest.startswith("//"):
        rest = f"//{rest}"
    authority, _, path = rest[2:].partition("/")
    if not authority:
        default = _value(settings, "fs.defaultFS")
        if not default.startswith("hdfs://"):
            raise HadoopSettingsError(
                f"{url} names no NameNode, and fs.defaultFS is no hdfs:// address: set HADOOP_CONF_DIR, or write "
                "hdfs://NAMENODE:PORT/..."
            )
        authority = default.removeprefix("hdfs://").partition("/")[0]
    return authority, f"/{path}".rstrip("/") or "/"


def http_addresses(authority: str, settings: Mapping[str, str]) -> list[str]:
    """Return the URLs of WebHDFS at the NameNodes of an authority; without settings, at Hadoop's default port.

    >>> http_addresses("nn:8020", {})
    ['http://nn:9870']
    >>> http_addresses("nn:8020", {"dfs.namenode.http-address": "0.0.0.0:50070"})
    ['http://nn:50070']
    >>> pair = {"dfs.ha.namenodes.lake": "a, b", "dfs.namenode.http-address.lake.a": "one:9870"}
    >>> http_addresses("lake", pair | {"dfs.namenode.rpc-address.lake.b": "two:8020"})
    ['http://one:9870', 'http://two:9870']
    >>> http_addresses("nn", {"dfs.http.policy": "HTTPS_ONLY"})
    ['https://nn:9871']
    """
    secure = _value(settings, "dfs.http.policy").upper() == "HTTPS_ONLY"
    scheme, port = ("https", _HTTPS_PORT) if secure else ("http", _HTTP_PORT)
    key = f"dfs.namenode.{scheme}-address"
    return [
        f"{scheme}://{_address(_value(settings, f'{key}{suffix}'), rpc, port)}"
        for suffix, rpc in _namenodes(authority, settings)
    ]


def rpc_addresses(authority: str, settings: Mapping[str, str]) -> list[str]:
    """Return the addresses (host:port) at which the NameNodes of an authority speak Hadoop's own protocol.

    >>> rpc_addresses("nn", {})
    ['nn:8020']
    """
    return [_address(rpc, rpc, _RPC_PORT) for _, rpc in _namenodes(authority, settings)]


def _namenodes(authority: str, settings: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return the suffix of each NameNode's settings, and its RPC address."""
    members = [name.strip() for name in _value(settings, f"dfs.ha.namenodes.{authority}").split(",") if name.strip()]
    if members:
        suffixes = [f".{authority}.{name}" for name in members]
        return [(suffix, _value(settings, f"dfs.namenode.rpc-address{suffix}")) for suffix in suffixes]
    services = [name.strip() for name in _value(settings, "dfs.nameservices").split(",")]
    if authority in services:
        return [(f".{authority}", _value(settings, f"dfs.namenode.rpc-address.{authority}"))]
    # Settings of another cluster than the URL's do not count.
    default = _value(settings, "fs.defaultFS").removeprefix("hdfs://").partition("/")[0]
    is_other = bool(default) and _host(default) != _host(authority)
    return [(".headwater-other-cluster" if is_other else "", authority)]


def _address(given: str, rpc: str, port: int) -> str:
    """Return host:port of a setting; the host of the RPC address where the setting has none, and a default port."""
    host, number = _host(given), _port(given)
    if host in _ANY:
        host = _host(rpc)
    if host in _ANY:
        raise HadoopSettingsError("a NameNode of the nameservice has neither dfs.namenode.http-address nor rpc-address")
    return f"{host}:{number or port}"


def _host(address: str) -> str:
    if address.startswith("["):
        return address.partition("]")[0] + "]"
    return address.partition(":")[0]


def _port(address: str) -> str:
    port = address.rpartition(":")[2] if ":" in address.rpartition("]")[2] else ""
    return port if port.isdecimal() else ""
