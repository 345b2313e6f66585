"""JDBC URLs and their redacted form. Pure.

Each database has its own grammar, and most grammars allow a password. Only parts recognized as driver, host, database
or schema are shown; everything else is hidden.
"""

from __future__ import annotations

import re
from typing import Final

from headwater.pipelines.definition.addresses.jdbc_names import NAMING, database_hash, named_in
from headwater.pipelines.definition.secret_text import SHOWN_INSTEAD, Secrets, SecretText, references_shown

_REFERENCE: Final = r"\$\{(?:env|file):[^{}]*\}"
_HOST: Final = rf"(?:[\w.\-\\%]|{_REFERENCE})+|\[[0-9A-Fa-f:.%]+\]"
_HOSTS: Final = re.compile(
    rf"(?:{_HOST})(?::(?:\d+|{_REFERENCE}))?(?:,(?:{_HOST})(?::(?:\d+|{_REFERENCE}))?)*", re.ASCII
)
_NAME: Final = re.compile(rf"(?:[\w.$~/\-]|{_REFERENCE})*", re.ASCII)
_SCHEME: Final = re.compile(r"jdbc:(?:[a-z][a-z0-9_+\-]*:)+", re.IGNORECASE)
_ORACLE_ADDRESS: Final = re.compile(
    rf"(?:tcps?:)?(?://)?(?:{_HOST})(?::\d+)?(?:[:/][\w.$\-]*(?::\w+)?(?:/\w+)?)?", re.ASCII | re.IGNORECASE
)
_ORACLE_PART: Final = re.compile(r"\(\s*(HOST|PORT|SERVICE_NAME|SID)\s*=\s*([\w.\-]+)\s*\)", re.ASCII | re.IGNORECASE)
# A value in braces may contain any delimiter (SQL Server); a closing brace in the value is doubled.
_PROPERTY: Final = re.compile(r"([\w.\-]+)\s*=\s*(\{(?:[^}]|\}\})*\}[^;&]*|[^;&]*)")
_SECRET_PROPERTY: Final = re.compile(
    r"(?i)(?:password|pwd|passphrase|secret|token)[\w.]*\s*=\s*(\{(?:[^}]|\}\})*\}|[^;&,]+)"
)
#: Drivers whose URL may be just a name: of a file, or of a database on the local machine.
_NAMED: Final = frozenset({"derby", "duckdb", "h2", "hsqldb", "postgresql", "sqlite"})
_USER_INFO: Final = re.compile(r"[:/]([^:/@]+)@")


def shown_url(url: str) -> str:
    """Return driver, hosts and database of a JDBC URL.

    >>> shown_url("jdbc:postgresql://me:p@db:5432/shop?user=x&password=y&currentSchema=a")
    'jdbc:postgresql://db:5432/shop?currentSchema=a'
    >>> shown_url("jdbc:oracle:thin:scott/tiger@//db:1521/orcl")
    'jdbc:oracle:thin:@//db:1521/orcl'
    >>> shown_url("jdbc:sqlserver://db:1433;user=sa;password={p;w}x;databaseName=shop")
    'jdbc:sqlserver://db:1433;databaseName=shop'
    """
    if re.fullmatch(_REFERENCE, url):
        return url
    scheme = _SCHEME.match(url)
    if scheme is None:
        return f"jdbc:{SHOWN_INSTEAD}"
    driver, rest = scheme[0], url[scheme.end() :]
    if driver.lower().startswith("jdbc:oracle:"):
        return _oracle(scheme[0], rest)
    if rest.startswith("//"):
        return driver + _with_hosts(rest[2:])
    name = re.match(r"[^;?]*", rest)
    assert name is not None
    if driver.split(":")[1].lower() not in _NAMED or not _NAME.fullmatch(name[0]):
        # The scheme may include a user by mistake.
        return ":".join(driver.split(":")[:2]) + f":{SHOWN_INSTEAD}"
    return driver + name[0] + _properties(rest[name.end() :])


def _with_hosts(rest: str) -> str:
    found = re.match(rf"(?:{_REFERENCE}|[^/;?])*", rest)
    assert found is not None
    authority, behind = found[0], rest[found.end() :]
    path = re.match(rf"/(?:{_REFERENCE}|[^;?:,])*", behind)
    name = path[0] if path is not None else ""
    hosts = authority.rpartition("@")[2]
    if "@" in name or not _HOSTS.fullmatch(hosts):
        return f"//{SHOWN_INSTEAD}"  # a password with a slash, or a driver-specific grammar
    shown_name = name if _NAME.fullmatch(name) else f"/{SHOWN_INSTEAD}"
    return f"//{hosts}{shown_name}{_properties(behind[len(name) :])}"


def _properties(text: str) -> str:
    """Return the properties that belong to the address, with the delimiter before the first."""
    shown = [
        f"{name}={value}"
        for name, value in _PROPERTY.findall(text)
        if name.lower() in NAMING and _NAME.fullmatch(value)
    ]
    return text[:1] + text[:1].replace("?", "&").join(shown) if shown and text[:1] in ";?" else ""


def _oracle(driver: str, rest: str) -> str:
    driver = ":".join(driver.split(":")[:3]) + ":"
    credentials, _, address = rest.rpartition("@") if rest.count("@") == 1 else ("", "", "")
    if rest.startswith("@"):
        credentials, address = "", rest[1:]
    if address.lstrip().startswith("("):
        parts = [f"({name}={value})" for name, value in _ORACLE_PART.findall(address)]
        return f"{driver}@{''.join(parts) or SHOWN_INSTEAD}"
    address = address.partition("?")[0]
    if "?" in credentials or not _ORACLE_ADDRESS.fullmatch(address):
        return f"{driver}@{SHOWN_INSTEAD}"
    return f"{driver}@{address}"


def secret_parts(url: str) -> set[str]:
    """Return the secret parts of a URL, which another program's message may repeat.

    >>> sorted(secret_parts("jdbc:sqlserver://db;password={p;w}x"))
    ['p;w', '{p;w}']
    """
    found = {*_SECRET_PROPERTY.findall(url), *_USER_INFO.findall(url)}
    return found | {part[1:-1].replace("}}", "}") for part in found if part.startswith("{")}


class JdbcUrl(SecretText):
    """A JDBC URL that shows only driver, hosts and database."""

    __slots__ = ()

    @property
    def database(self) -> str | None:
        """A hash of the database's name; None if the URL does not determine it, or a secret in the URL is missing."""
        named = None if self.value is None else named_in(self.value)
        return None if named is None else database_hash(named)

    @property
    def named(self) -> str | None:
        """Key that compares databases: `database`, or the name with references for missing secrets; None if unknown."""
        return self.database if self.value is not None else named_in(str(self))

    def place(self, table: str) -> tuple[str, str] | None:
        """The table as a place that stages write and read; None if its database is unknown.

        Where the URL does not determine its database, equal texts mean the same database. Such a name is valid only
        within this process.
        """
        named = self.named
        if named is None and self.value is not None:
            named = f"{hash(self.value):x}"
        return None if named is None else ("jdbc", f"{named} {table}")

    @classmethod
    def of(cls, text: str, secrets: Secrets | None = None, *, is_secret: bool = False) -> JdbcUrl:
        """Create from substituted text; hidden parts are also redacted from other programs' messages."""
        value = SecretText.of(text, secrets, is_secret=is_secret).value
        shown = shown_url(references_shown(text))
        if secrets is not None and value is not None:
            secrets.learn(value, shown)
            for part in secret_parts(value):
                secrets.learn(part, SHOWN_INSTEAD)
        return cls(shown, value)
