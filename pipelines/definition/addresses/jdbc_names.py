"""The name of the database that a JDBC URL addresses. Pure.

The name comes from the URL itself, not from its redacted form. It holds driver, hosts, path and the properties that
belong to the address; it never holds users, passwords or settings. The name is unknown for an unknown grammar, and
where a password cannot be distinguished from a host: equal names mean one database.
"""

from __future__ import annotations

import hashlib
import re
from typing import Final

from headwater.pipelines.definition.secret_text import SHOWN_INSTEAD

#: Properties that name a database in some driver's grammar. Snowflake's warehouse names compute resources, no database.
NAMING: Final = frozenset(
    {
        "account", "awsregion", "catalog", "clusterid", "conncatalog", "connschema", "currentschema", "database",
        "databasename", "dataset", "datasetid", "db", "dbname", "defaultdataset", "host", "informixserver", "instance",
        "instancename", "keyspace", "libraries", "namespace", "port", "portnumber", "project", "projectid", "region",
        "schema", "server", "servername", "service_name", "servicename", "sid", "tenant",
    }
)  # fmt: skip
#: Drivers whose URL may lack `//`, and holds no user or password before its properties.
_WITHOUT_HOSTS: Final = frozenset(
    {"as400", "clickhouse", "db2", "derby", "duckdb", "firebirdsql", "h2", "hsqldb", "phoenix", "postgresql", "sqlite",
     "sybase", "ucanaccess"}
)  # fmt: skip
_REFERENCE: Final = re.compile(r"\$\{(?:env|file):[^{}]*\}")
_DRIVER: Final = re.compile(r"jdbc:([a-z][a-z0-9_+\-]*):", re.IGNORECASE)
_HOSTED: Final = re.compile(r"(jdbc:(?:[a-z][a-z0-9_+\-]*:)+)//(.*)", re.IGNORECASE | re.DOTALL)
#: A host with an optional port of digits or of a reference (`\ue000`); a user and a password never match.
_HOST: Final = r"(?:\[[^\]@]*\]|[^:,@()=\s]*)(?::(?:\d+|\ue000\d+\ue001))?"
_HOSTS: Final = re.compile(rf"{_HOST}(?:,{_HOST})*")
_PART: Final = r"\s*[\w.\-]+\s*=[^(),]*"
_LISTED_HOST: Final = re.compile(rf"\({_PART}(?:,{_PART})*\)|address=(?:\({_PART}\))+|{_HOST}", re.IGNORECASE)
_PROPERTY: Final = re.compile(r"\s*([^=;]*)(?:=\s*(\{(?:[^}]|\}\})*\}[^;]*|[^;]*))?(?:;|$)")
_TERADATA: Final = re.compile(r"\s*([\w.\-]+)\s*=\s*('(?:[^']|'')*'|[^,']*)(?:,|$)")
_BEHIND_COLON: Final = re.compile(r":(?=\w+=)")
_PHOENIX: Final = re.compile(r"jdbc:phoenix:[^:;/]+(?::\d+)?(?::/[^:;]*)?", re.IGNORECASE)
_ORACLE: Final = re.compile(r"jdbc:oracle:\w+:", re.IGNORECASE)
_ORACLE_PART: Final = re.compile(r"\(\s*(HOST|PORT|SERVICE_NAME|SID)\s*=\s*([^()]*?)\s*\)", re.IGNORECASE)
_QUOTED_PASSWORD: Final = re.compile(r'[^/"@]*/"[^"]*"')
_HASH_LENGTH: Final = 16

_Pairs = list[tuple[str, str]]


def named_in(url: str) -> str | None:
    """Return the normalized name of a URL's database, without users and passwords; None if unknown.

    >>> named_in("jdbc:snowflake://acc.example/?user=u&password=p&warehouse=w&db=Shop")
    'jdbc:snowflake://acc.example/;db=Shop'
    >>> named_in("jdbc:mysql://(host=db,port=1,password=p)/shop")
    'jdbc:mysql://(host=db,port=1)/shop'
    >>> named_in("jdbc:postgresql://user:pass/word@db/shop"), named_in("jdbc:unknown:user:password")
    ('jdbc:postgresql://db/shop', None)
    """
    references = _REFERENCE.findall(url)
    if references == [url]:
        return url
    if "\ue000" in url:
        return None
    for number, reference in enumerate(references):
        url = url.replace(reference, f"\ue000{number}\ue001", 1)
    named = _named(url)
    if named is None or SHOWN_INSTEAD in named:
        return None
    for number, reference in enumerate(references):
        named = named.replace(f"\ue000{number}\ue001", reference)
    return named


def database_hash(named: str) -> str:
    """Return the hash of a database's name, for deployment records."""
    return hashlib.sha256(named.encode()).hexdigest()[:_HASH_LENGTH]


def _named(url: str) -> str | None:
    driver = _DRIVER.match(url)
    if driver is None:
        return None
    kind = driver[1].lower()
    if kind == "oracle":
        return _oracle(url)
    hosted = _HOSTED.fullmatch(url)
    if hosted is not None:
        return _with_hosts(kind, hosted[1], hosted[2])
    if kind not in _WITHOUT_HOSTS:
        return None
    address, behind = _split(url, r"\?" if kind == "sqlite" else "[;?]")
    if kind == "db2":
        address, behind = _colon(address, behind)
    pairs = _pairs(kind, behind)
    if pairs is None or "@" in address or "=" in address or (kind == "sqlite" and ";" in address):
        return None
    if kind == "phoenix" and not _PHOENIX.fullmatch(address):
        return None  # a user and the path of a key file may follow
    return _joined(address, pairs)


def _with_hosts(kind: str, scheme: str, rest: str) -> str | None:
    address, behind = _split(rest, "[;?]")
    if kind == "awsathena" and "=" in address:
        address, behind = "", ";" + rest
    authority, path = _authority(address)
    listed: _Pairs = []
    if "@" in path:
        # A password with a slash, or a path with an @: only in the first case is the text before the slash no host.
        credentials, _, candidate = address.rpartition("@")
        first, path = _authority(candidate)
        is_host = _HOSTS.fullmatch(first) or re.fullmatch(r"\(.*\)", first)
        if "@" in credentials or _HOSTS.fullmatch(authority) or not is_host:
            return None
        authority = first
    if kind == "teradata":
        found = _teradata(path)
        if found is None:
            return None
        path, listed = found
    else:
        path, behind = _colon(path, behind)
    hosts = _hosts(authority)
    pairs = _pairs(kind, behind)
    if hosts is None or pairs is None or "=" in path:
        return None
    if "@" in behind and ":" in hosts and (not _HOSTS.fullmatch(hosts) or (not path and behind.startswith("?"))):
        return None  # a password with a character that begins the properties
    named = _joined(f"{scheme}//{hosts}{path}", [*listed, *pairs])
    return None if named in (f"{scheme}//", f"{scheme}///") else named


def _authority(address: str) -> tuple[str, str]:
    """Return the hosts with their user, and the path. In a list of hosts a password may contain a slash (MySQL)."""
    found = re.match(r"(?:\([^()]*\)|[^/])*", address)
    assert found is not None
    return found[0], address[found.end() :]


def _split(text: str, signs: str) -> tuple[str, str]:
    """Split before the first of the characters `signs`; the second part begins with that character."""
    found = re.search(signs, text)
    return (text, "") if found is None else (text[: found.start()], text[found.start() :])


def _colon(path: str, behind: str) -> tuple[str, str]:
    """Return a path without the properties that Db2 and Informix append after a colon, and all properties."""
    found = _BEHIND_COLON.search(path)
    return (path, behind) if found is None else (path[: found.start()], ";" + path[found.end() :] + behind)


def _hosts(authority: str) -> str | None:
    credentials, at, hosts = authority.rpartition("@")
    if at and set(",()") & set(credentials):
        return None  # a user for each host, or an @ in a password
    if not set("(=") & set(hosts):
        return None if set(")'\"{}") & set(hosts) else hosts
    found: list[str] = []
    position = 0
    while True:
        host = _LISTED_HOST.match(hosts, position)
        if host is None:
            return None
        pairs = re.findall(r"(?<=[(,])\s*([\w.\-]+)\s*=([^(),]*)", host[0])
        named = sorted((name.lower(), value.strip()) for name, value in pairs if name.lower() in NAMING)
        found.append(f"({','.join(f'{name}={value}' for name, value in named)})" if "(" in host[0] else host[0])
        position = host.end()
        if position == len(hosts):
            return ",".join(found)
        if hosts[position] != ",":
            return None
        position += 1


def _teradata(path: str) -> tuple[str, _Pairs] | None:
    """Return a path and its properties: `/DATABASE=shop,...`."""
    if "=" not in path:
        return path, []
    pairs: _Pairs = []
    position = 1
    while position < len(path):
        found = _TERADATA.match(path, position)
        if found is None:
            return None
        pairs.append((found[1], found[2]))
        position = found.end()
    return "/", pairs


def _pairs(kind: str, behind: str) -> _Pairs | None:
    """Return names and values of properties; None if the text may be something else."""
    if behind.startswith("?"):
        parts = [part.partition("=") for part in behind[1:].split("&")]
        return None if any("@" in name for name, _, _ in parts) else [(name, value) for name, _, value in parts]
    pairs: _Pairs = []
    for name, value in _PROPERTY.findall(behind[1:]):
        is_braced = value.startswith("{")
        # Braces quote a value for SQL Server; for other drivers they are ordinary characters.
        if "@" in name or (is_braced and ";" in value and kind != "sqlserver") or (is_braced and "}" not in value):
            return None
        pairs.append((name, value))
    return pairs


def _joined(address: str, pairs: _Pairs) -> str:
    named = [(name.strip().lower(), value.strip()) for name, value in pairs]
    kept = sorted((pair for pair in named if pair[0] in NAMING), key=lambda pair: pair[0])
    address = address.replace(";", "%3B")
    return address + "".join(f";{name}={value.replace(';', '%3B')}" for name, value in kept)


def _oracle(url: str) -> str | None:
    driver = _ORACLE.match(url)
    if driver is None:
        return None
    credentials, at, address = url[driver.end() :].partition("@")
    if credentials and "@" in address:
        credentials, at, address = url[driver.end() :].rpartition("@")
        if not _QUOTED_PASSWORD.fullmatch(credentials):
            return None
    if not at or "?" in _QUOTED_PASSWORD.sub("", credentials):
        return None
    if address.lstrip().startswith("("):
        parts = [f"({name}={value})" for name, value in _ORACLE_PART.findall(address)]
        return f"{driver[0]}@{''.join(parts)}" if parts else None
    address = address.partition("?")[0]
    return f"{driver[0]}@{address}" if address and "@" not in address else None
