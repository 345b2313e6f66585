"""Completion of topics, tables, columns, functions and keywords."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document

from headwater.pipelines.sql.lake_tables import LAKE
from headwater.pipelines.sql.shared_views import LOG
from headwater.pipelines.sql.topic_names import INTERNAL_PREFIX
from headwater.pipelines.sql_text import scanner
from headwater.pipelines.sql_text.functions import FUNCTIONS

if TYPE_CHECKING:
    from headwater.pipelines.sql.relations import Relations

__all__ = ["KEYWORDS", "SqlCompleter", "quoted"]

KEYWORDS: Final = (
    "ALL", "ALTER", "AND", "ANTI", "AS", "ASC", "BETWEEN", "BY", "CASE", "CAST", "COLUMNS", "CREATE", "CROSS",
    "DATABASE", "DELETE", "DESC", "DESCRIBE", "DETAIL", "DISTINCT", "DROP", "ELSE", "END", "EXCEPT", "EXISTS",
    "EXPLAIN", "EXTENDED", "FALSE", "FORMATTED", "FROM", "FULL", "FUNCTIONS", "GROUP", "HAVING", "HISTORY", "IN",
    "INNER", "INSERT", "INTERSECT", "INTERVAL", "INTO", "IS", "JOIN", "LATERAL", "LEFT", "LIKE", "LIMIT",
    "LOCATION", "MATCHED", "MERGE", "NOT", "NULL", "OFFSET", "ON", "OPTIMIZE", "OR", "ORDER", "OUTER", "OVER",
    "OVERWRITE", "PARTITION", "PARTITIONED", "PIVOT", "REPLACE", "RIGHT", "RLIKE", "SCHEMA", "SCHEMAS", "SELECT",
    "SEMI", "SET", "SHOW", "TABLE", "TABLES", "TEMPORARY", "THEN", "TRUE", "UNION", "UNPIVOT", "UPDATE", "USING",
    "VACUUM", "VALUES", "VERSION", "VIEW", "WATERMARK", "WHEN", "WHERE", "WINDOW", "WITH",
)  # fmt: skip
COMPLETIONS_MAX: Final = 200  # shown for one word; a cluster may have thousands of topics
_BEFORE_RELATIONS: Final = frozenset(
    ["FROM", "JOIN", "INTO", "TABLE", "DESCRIBE", "DESC", "EXTENDED", "UPDATE", "USING"]
)
_PLAIN: Final = re.compile(r"[A-Za-z_]\w*")
_LAST: Final = re.compile(r"(?:(\w+|`(?:[^`]|``)*`)\.)?(`(?:[^`]|``)*|\w*)$")


def quoted(name: str) -> str:
    """A name as a statement has to write it.

    >>> quoted("flights"), quoted("flights.dead_letters")
    ('flights', '`flights.dead_letters`')
    """
    return name if _PLAIN.fullmatch(name) else f"`{name.replace('`', '``')}`"


class SqlCompleter(Completer):
    """Completes the word before the cursor. It asks the broker, and Spark for columns: prompts call it in a thread."""

    def __init__(self, relations: Relations) -> None:
        self._relations = relations

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterator[Completion]:  # noqa: ARG002
        """Yield what may follow."""
        before = document.text_before_cursor
        last = _LAST.search(before)
        if last is None:
            return
        qualifier, word = last[1], last[2]
        shown = 0
        for name in self._names(before[: last.start()], document.text, qualifier):
            plain = word.lstrip("`").lower()
            if name.lower().startswith(plain) and shown < COMPLETIONS_MAX:
                shown += 1
                is_function = name.endswith("(")
                yield Completion(
                    name if is_function or name in KEYWORDS else quoted(name), -len(word), name.rstrip("(")
                )

    def _names(self, before: str, text: str, qualifier: str | None) -> Iterable[str]:
        """The names that may stand here."""
        if qualifier is not None:
            schema = qualifier.strip("`").lower()
            if schema == LOG:
                return self._topics()
            if schema == LAKE:
                return sorted(self._relations.known.lake)
            return sorted(self._columns_by(text, qualifier.strip("`")))
        words = scanner.words(before)
        if words and words[-1] in _BEFORE_RELATIONS:
            return [*self._topics(), *self._tables(), LOG, LAKE]
        names = [*sorted(self._columns(text)), *KEYWORDS, *(f"{name}(" for name in sorted(FUNCTIONS))]
        return names if words else KEYWORDS

    def _topics(self) -> list[str]:
        topics: Any = self._relations.topics
        try:
            names = topics.all()
        except Exception:  # noqa: BLE001 - whatever the broker says: the statement reports it
            names = topics.last()
        return [name for name in names if not name.startswith(INTERNAL_PREFIX)]

    def _tables(self) -> list[str]:
        known = self._relations.known
        return sorted({*known.columns.tables, *known.tables})

    def _columns(self, text: str) -> set[str]:
        """The columns of every relation that the text names."""
        return {column for name in scanner.names(text) for column in self._relations.columns(name)}

    def _columns_by(self, text: str, qualifier: str) -> set[str]:
        """The columns of one relation, or of all if the qualifier is an alias."""
        own = self._relations.columns((qualifier,))
        return set(own) if own else self._columns(text)
