"""`SHOW TABLES` with the topics and Delta tables, which are no relations of Spark's before a statement names them."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

from headwater.pipelines.sql.lake_tables import LAKE
from headwater.pipelines.sql.shared_views import LOG
from headwater.pipelines.sql.topic_names import INTERNAL_PREFIX
from headwater.pipelines.sql_text.scanner import SqlTokenKind, tokens

if TYPE_CHECKING:
    from headwater.pipelines.sql.relations import Relations

__all__ = ["COLUMNS", "Listing", "Relation", "parse_listing", "relations_listed"]

COLUMNS: Final = ("namespace", "tableName", "isTemporary")  # Spark's


class Relation(NamedTuple):
    """A row of the list."""

    namespace: str
    name: str
    is_temporary: bool


class Listing(NamedTuple):
    """A `SHOW TABLES`: the schema, '' for the current one, and the pattern, '' for all."""

    schema: str
    pattern: str


def parse_listing(statement: str) -> Listing | None:
    """Parse `SHOW TABLES [{FROM | IN} SCHEMA] [[LIKE] 'PATTERN']`; None for another statement.

    >>> parse_listing("show tables in log like 'fl*'"), parse_listing("SHOW TABLES"), parse_listing("SHOW TABLE x")
    (Listing(schema='log', pattern='fl*'), Listing(schema='', pattern=''), None)
    """
    seen = [token for token in tokens(statement) if token.kind is not SqlTokenKind.COMMENT]
    if [token.text.upper() for token in seen[:2]] != ["SHOW", "TABLES"]:
        return None
    rest, schema, pattern = seen[2:], "", ""
    if (
        len(rest) >= 2
        and rest[0].text.upper() in ("FROM", "IN")
        and rest[1].kind in (SqlTokenKind.WORD, SqlTokenKind.QUOTED)
    ):
        schema, rest = rest[1].name, rest[2:]
    if rest and rest[0].text.upper() == "LIKE":
        rest = rest[1:]
    if rest and rest[0].kind is SqlTokenKind.STRING:
        pattern, rest = rest[0].text[1:-1], rest[1:]
    return None if rest else Listing(schema, pattern)


def relations_listed(
    listing: Listing, relations: Relations, of_spark: Callable[[], list[Relation]]
) -> list[Relation] | None:
    """The rows of a listing; None for a schema of the catalog's, which Spark lists.

    `of_spark` lists the tables and views of the current schema. Raises the errors of the function that lists topics.
    """
    schema = listing.schema.lower()
    topics = [name for name in relations.topics.all() if not name.startswith(INTERNAL_PREFIX)] if schema != LAKE else []
    tables = list(relations.known.lake)
    if schema == LOG:
        found = [Relation(LOG, name, True) for name in topics]
    elif schema == LAKE:
        found = [Relation(LAKE, name, False) for name in tables]
    elif schema:
        return None
    else:
        known = {name.lower() for name in topics}
        found = [Relation("", name, True) for name in topics]
        found += [Relation("", name, True) for name in relations.known.columns.tables if name.lower() not in known]
        found += [Relation(LAKE, name, False) for name in tables]
        listed = {each.name.lower() for each in found}
        found += [each for each in of_spark() if not (each.is_temporary and each.name.lower() in listed)]
    return sorted(each for each in found if _fits(each.name, listing.pattern))


def _fits(name: str, pattern: str) -> bool:
    """Whether a name fits a pattern of Spark's: `*` for any text, `|` between alternatives, without regard to case.

    >>> _fits("Flights", "fl*|x"), _fits("flights", "light")
    (True, False)
    """
    if not pattern:
        return True
    alternatives = [re.compile(fnmatch.translate(part.strip()), re.IGNORECASE) for part in pattern.split("|")]
    return any(each.match(name) for each in alternatives)
