"""The database of a stage's record, identified by its name in the URL, not by the URL's redacted form. Pure.

Entries of records are mappings: inputs and sinks have `kind`, `target` (`TABLE of URL`, redacted) and `database`;
tables have `jdbc` (the redacted URL) and `database`. `database` is a hash of driver, hosts, name and schema, without
users and passwords; None if the URL does not determine it, or if a required secret is missing. Earlier releases
recorded only the URL in their redacted form, or a hash of that form.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from headwater.pipelines.definition.addresses.jdbc_names import database_hash, named_in
from headwater.pipelines.definition.addresses.jdbc_url import shown_url
from headwater.pipelines.definition.secret_text import SHOWN_INSTEAD

__all__ = ["aligned", "aligned_tables", "is_untold", "url_of", "with_databases"]

_OF: Final = " of "
#: Appended to a record's target whose database differs although the redacted URL is the same.
_OTHER: Final = " (another database: what names it is not all shown)"


def _with_database(entry: Mapping[str, Any]) -> dict[str, Any]:
    """An entry with its database, as far as an earlier release's URL determines it."""
    if entry.get("kind") != "jdbc" and "jdbc" not in entry:
        return dict(entry)
    url = url_of(entry)
    if "database" in entry:
        address = re.split("[?;]", shown_url(url), maxsplit=1)[0]
        is_told = SHOWN_INSTEAD not in address or entry["database"] != database_hash(address)
        return {**entry, "database": entry["database"] if is_told else None}
    named = named_in(url)
    return {**entry, "database": None if named is None or "${" in named else database_hash(named)}


def with_databases(values: Mapping[str, Any]) -> dict[str, Any]:
    """A record's values, with the database of each input, sink and table."""
    found = dict(values)
    for name in ("inputs", "sinks"):
        found[name] = tuple(_with_database(entry) for entry in values[name])
    if values.get("declared") is not None:
        declared = values["declared"].items()
        found["declared"] = {name: _with_database(v) if isinstance(v, Mapping) else v for name, v in declared}
    return found


def aligned(before: Sequence[Mapping[str, Any]], now: Sequence[Mapping[str, Any]]) -> tuple[dict[str, Any], ...]:
    """Inputs or sinks of a record, with the current targets where they are the same."""
    return tuple(_aligned(entry, now) for entry in before)


def aligned_tables(before: Mapping[str, Any] | None, now: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Declared tables of a record, with the current URLs where they are the same."""
    if before is None:
        return None
    found = dict(before)
    for name, entry in before.items():
        other = (now or {}).get(name)
        if isinstance(entry, Mapping) and isinstance(other, Mapping) and "jdbc" in entry and "jdbc" in other:
            same = _is_same(entry, other)
            found[name] = {**entry, "jdbc": other["jdbc"], "database": other["database"]} if same else entry
    return found


def _aligned(was: Mapping[str, Any], now: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    if was["kind"] != "jdbc":
        return dict(was)
    others = [each for each in now if each["kind"] == "jdbc" and _table(each) == _table(was)]
    for each in others:
        if _is_same(was, each):
            return {**was, "target": each["target"], "database": each["database"]}
    is_shown = any(each["target"] == was["target"] for each in others)
    return {**was, "target": was["target"] + _OTHER} if is_shown else dict(was)


def is_untold(was: object, now: object) -> bool:
    """Whether two entries show the same database, and the database of one of them is unknown."""
    if not isinstance(was, Mapping) or not isinstance(now, Mapping) or not {"database"} <= was.keys() & now.keys():
        return False
    return None in (was["database"], now["database"]) and _is_same(was, now)


def _is_same(was: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Whether two entries are of one database. If one of them is unknown, the redacted URLs decide."""
    if was["database"] is not None and now["database"] is not None:
        return bool(was["database"] == now["database"])
    return _written(url_of(was)) == _written(url_of(now))


def _written(url: str) -> str:
    """The database's part of a redacted URL."""
    return named_in(url) or shown_url(url)


def _table(entry: Mapping[str, Any]) -> str:
    return str(entry["target"]).rpartition(_OF)[0]


def url_of(entry: Mapping[str, Any]) -> str:
    """The redacted URL of an entry."""
    return str(entry["jdbc"] if "jdbc" in entry else str(entry["target"]).rpartition(_OF)[2])
