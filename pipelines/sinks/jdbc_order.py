"""The order of changes (`change_rule`) in a database: outdated staged rows, and remembered last changes.

Headwater's table beside the target, `headwater_last_…`, holds for each key the sequence and the position of its last
change, which is a row or a delete. It is read and written in the transaction that moves a micro-batch's rows. For keys
that it lacks (rows from earlier versions or from other programs), the target's own sequence columns are compared.

The table belongs to the target, not to a checkpoint: a stage that starts anew keeps the rows and their remembered
order. Values of different sequences cannot be compared, so each sequence has its own table.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from headwater.pipelines.columns import SOURCE_POSITION
from headwater.pipelines.sinks.change_order import known_positions
from headwater.pipelines.sinks.change_rule import POSITION

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = [
    "Ordering",
    "column_types",
    "index_statement",
    "last_name",
    "names",
    "of_columns",
    "short_hash",
    "target_column",
    "with_order",
]

_POSITION: Final = "headwater_position"  # POSITION without the topic, as text with the same order
_SEQUENCE: Final = "headwater_sequence_"  # followed by a number
_TEXT: Final = "VARCHAR(255)"  # a comparable type; many databases map Spark's strings to CLOB
_TYPES_OPTION: Final = "createTableColumnTypes"
_DIGITS: Final = 20
_LAST: Final = "headwater_last_"  # followed by a hash of the table, its keys and its sequence
_HASH_LENGTH: Final = 16
#: One column of that option, `name DECIMAL(10, 2)`, with its name as a group.
_TYPE: Final = re.compile(r"""(?:`[^`]*`|'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|\([^()]*\)|[^,`'"(])+""")
_TYPED: Final = re.compile(r"\s*(?:`((?:[^`]|``)*)`|([^\s`]+))")


def short_hash(text: str) -> str:
    """A hash short enough for names in every database."""
    return hashlib.sha256(text.encode()).hexdigest()[:_HASH_LENGTH]


def last_name(table: str, keys: Sequence[str], sequence: Sequence[str]) -> str:
    """The name of the table of each key's last change.

    >>> last_name("t", ["a", "b"], ["v"]) == last_name("T", ["B", "a"], ["V"]) != last_name("t", ["a", "b"], ["w"])
    True
    """
    parts = [[table], sorted(key.lower() for key in keys), list(sequence)]
    return _LAST + short_hash(repr(parts).lower())


def index_statement(table: str, names: Sequence[str], quoted: Callable[[str], str]) -> str:
    """SQL that creates an index. Keys may be null, so the index is no primary key.

    >>> index_statement("shop.headwater_last_1", ["id"], lambda name: f'"{name}"')
    'CREATE INDEX headwater_last_1_keys ON shop.headwater_last_1 ("id")'
    """
    return f"CREATE INDEX {table.rpartition('.')[2]}_keys ON {table} ({', '.join(quoted(name) for name in names)})"


def names(sequence: Sequence[str]) -> list[str]:
    """Columns of the order, the most significant first.

    >>> names(["v"])
    ['headwater_sequence_0', 'headwater_position']
    """
    return [*(f"{_SEQUENCE}{n}" for n in range(len(sequence))), _POSITION]


def with_order(rows: DataFrame, sequence: Sequence[str]) -> DataFrame:
    """The rows with the columns of `names`; unchanged without a sequence."""
    from pyspark.sql import functions as f

    if not sequence:
        return rows
    known = known_positions(rows.columns)
    parts = [f.coalesce(f.col(SOURCE_POSITION), f.lit("")) if SOURCE_POSITION in known else f.lit("")]
    numbers = [name for name in known if POSITION[name] != "string"]
    parts += [f.lpad(f.coalesce(f.col(name).cast("string"), f.lit("0")), _DIGITS, "0") for name in numbers]
    position = f.concat(f.concat_ws("/", *parts), f.lit("/"))  # never empty: some databases treat empty text as null
    given = {f"{_SEQUENCE}{n}": f.col(f"`{name}`") for n, name in enumerate(sequence)}
    return rows.withColumns({**given, _POSITION: position})


def column_types(rows: DataFrame, options: Mapping[str, str]) -> dict[str, str]:
    """Spark's options for a table with these columns; text columns of the order get a comparable type."""
    given = next((value for name, value in options.items() if name.lower() == _TYPES_OPTION.lower()), None)
    texts = [
        f"{field.name} {_TEXT}"
        for field in rows.schema.fields
        if field.dataType.typeName() == "string" and (field.name == _POSITION or field.name.startswith(_SEQUENCE))
    ]
    rest = {name: value for name, value in options.items() if name.lower() != _TYPES_OPTION.lower()}
    return {**rest, _TYPES_OPTION: ", ".join([given, *texts] if given else texts)}


def of_columns(options: Mapping[str, str], names: Collection[str]) -> dict[str, str]:
    """Spark's options restricted to these columns: Spark refuses types of columns that a table lacks.

    >>> of_columns({"createTableColumnTypes": "id CHAR(2), price DECIMAL(9, 2)"}, ["ID"])
    {'createTableColumnTypes': 'id CHAR(2)'}
    """
    known = {name.lower() for name in names}
    found = {}
    for option, value in options.items():
        if option.lower() != _TYPES_OPTION.lower():
            found[option] = value
        elif kept := [part.strip() for part in _TYPE.findall(value) if _typed(part).lower() in known]:
            found[option] = ", ".join(kept)
    return found


def _typed(part: str) -> str:
    """The column name in a part of the option."""
    found = _TYPED.match(part)
    if found is None:
        return ""
    return found[2] if found[1] is None else found[1].replace("``", "`")


@dataclass(frozen=True, slots=True)
class Ordering:
    """SQL statements on staged rows. `columns`: the target's name of each of the rows' columns."""

    target: str
    staged: str
    last: str
    columns: Mapping[str, str]
    keys: Sequence[str]
    sequence: Sequence[str]
    quoted: Callable[[str], str]

    def passed_over(self) -> list[str]:
        """SQL that removes staged rows for whose keys the database has a later change."""
        order = names(self.sequence)
        remembered = self._same(self.last, {key: key for key in self.keys})
        found = [self._without(self.last, remembered, order, order)]
        known = {name.lower() for name in self.columns}
        if all(name.lower() in known for name in self.sequence):
            theirs = [target_column(self.columns, name) for name in self.sequence]
            same = self._same(self.target, {key: target_column(self.columns, key) for key in self.keys})
            found.append(self._without(self.target, same, theirs, order[: len(theirs)]))
        return found

    def remembered(self, deleted: str) -> list[str]:
        """SQL that stores the order of the staged rows as the order of their keys' last changes."""
        same = self._same(self.last, {key: key for key in self.keys})
        held = ", ".join(self.quoted(name) for name in (*self.keys, *names(self.sequence), deleted))
        return [
            f"DELETE FROM {self.last} WHERE EXISTS (SELECT 1 FROM {self.staged} WHERE {same})",  # noqa: S608
            f"INSERT INTO {self.last} ({held}) SELECT {held} FROM {self.staged}",  # noqa: S608
        ]

    def _same(self, table: str, theirs: Mapping[str, str]) -> str:
        parts = []
        for key, name in theirs.items():
            ours, other = f"{self.staged}.{self.quoted(key)}", f"{table}.{self.quoted(name)}"
            parts.append(_equal(ours, other))
        return " AND ".join(parts)

    def _without(self, table: str, same: str, theirs: Sequence[str], ours: Sequence[str]) -> str:
        pairs = [
            (f"{table}.{self.quoted(their)}", f"{self.staged}.{self.quoted(our)}")
            for their, our in zip(theirs, ours, strict=True)
        ]
        later = []
        for position, (their, our) in enumerate(pairs):
            equal = [_equal(*pair) for pair in pairs[:position]]
            # Null sorts first, as in `change_order`. SQL's own comparison with null is neither true nor false.
            greater = f"({their} > {our} OR ({their} IS NOT NULL AND {our} IS NULL))"
            later.append("(" + " AND ".join([*equal, greater]) + ")")
        return (
            f"DELETE FROM {self.staged} WHERE EXISTS (SELECT 1 FROM {table} "  # noqa: S608
            f"WHERE {same} AND ({' OR '.join(later)}))"
        )


def _equal(left: str, right: str) -> str:
    return f"({left} = {right} OR ({left} IS NULL AND {right} IS NULL))"


def target_column(columns: Mapping[str, str], name: str) -> str:
    """The target's name of a column, regardless of case."""
    return next(target for own, target in columns.items() if own.lower() == name.lower())
