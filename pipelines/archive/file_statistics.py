"""The statistics of a Parquet file for Delta's `add` action, by which readers skip files.

Most of them are in the file's footer. The footer lacks two: whether a column contains NaN, and how many arrays and maps
are null. Both are counted in the batches that are written.

Sources: the Delta protocol, "Per-file Statistics", and, for the contents, Delta's `StatisticsCollection`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import orjson

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

__all__ = ["INDEXED_COLUMNS", "FileStatistics"]

INDEXED_COLUMNS: Final = 32  # Delta's default of `delta.dataSkippingNumIndexedCols`

# Characters of a string's bounds: Delta's default of `delta.dataSkippingStringPrefixLength`.
_PREFIX: Final = 32
_PREFIX_MAX: Final = 2 * _PREFIX
_LAST_ASCII: Final = "\x7f"
_LAST: Final = "\U0010ffff"

#: Returns a bound as a JSON value; None without one.
_Form = Callable[[Any], Any]


@dataclass(slots=True)
class _Leaf:
    """A column, or a field of a struct that is no struct itself."""

    names: tuple[str, ...]
    places: tuple[int, ...]  # the column's position, then those of the fields in the structs
    chunk: int  # the first Parquet column
    forms: tuple[_Form, _Form] | None  # of its minimum and its maximum; None for types without bounds
    may_be_nan: bool
    is_counted: bool  # whether the footer lacks the number of nulls
    has_nan: bool = False
    nulls: int = 0


class FileStatistics:
    """The statistics of one file, for Delta's `add` action.

    `schema`: of the file. Its unsigned integers, and timestamps of nanoseconds, have no bounds: Delta lacks both types.
    `indexed_columns`: how many leaf columns have statistics (`delta.dataSkippingNumIndexedCols`); -1 for all.
    """

    def __init__(self, schema: pa.Schema, indexed_columns: int = INDEXED_COLUMNS) -> None:
        leaves: list[_Leaf] = []
        self._chunks = _add_leaves(leaves, schema, (), (), 0)
        self._leaves = leaves if indexed_columns < 0 else leaves[:indexed_columns]
        self._observed = [leaf for leaf in self._leaves if leaf.may_be_nan or leaf.is_counted]
        self._rows = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Observe a batch that is written to the file."""
        import pyarrow.compute as pc

        self._rows += batch.num_rows
        for leaf in self._observed:
            if leaf.has_nan:
                continue
            values = batch.column(leaf.places[0])
            if len(leaf.places) > 1:
                # Unlike the struct's own array of the field, null where the struct is null.
                values = pc.struct_field(values, leaf.places[1:])
            if leaf.is_counted:
                leaf.nulls += values.null_count
            else:
                leaf.has_nan = bool(pc.any(pc.is_nan(values)).as_py())

    def text(self, footer: pq.FileMetaData) -> str:
        """Return the statistics as JSON, once all batches were added and the file is closed.

        Bounds and numbers of nulls that the footer lacks are omitted, and so are bounds with a year that Python lacks.
        Raises ValueError if the footer has other columns, or another number of rows, than the schema and the batches.
        """
        if footer.num_columns != self._chunks:
            raise ValueError(f"the file has {footer.num_columns} Parquet columns, its schema {self._chunks}")
        if footer.num_rows != self._rows:
            raise ValueError(f"the file has {footer.num_rows} rows, its batches {self._rows}")
        groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
        groups = [group for group in groups if group.num_rows]
        least: dict[str, Any] = {}
        greatest: dict[str, Any] = {}
        nulls: dict[str, Any] = {}
        for leaf in self._leaves:
            chunks = [group.column(leaf.chunk).statistics for group in groups]
            _put(nulls, leaf.names, leaf.nulls if leaf.is_counted else _null_count(chunks))
            if leaf.forms is not None:
                # Delta has an object for each struct with a field that can have a bound.
                for values, bound in zip((least, greatest), _bounds(leaf, groups, chunks), strict=True):
                    _put(values, leaf.names, bound)
        statistics: dict[str, Any] = {"numRecords": footer.num_rows}
        if any(leaf.forms is not None for leaf in self._leaves):
            statistics |= {"minValues": least, "maxValues": greatest}
        if self._leaves:
            statistics["nullCount"] = nulls
        return orjson.dumps(statistics).decode()


def _add_leaves(leaves: list[_Leaf], fields: Any, names: tuple[str, ...], places: tuple[int, ...], chunk: int) -> int:
    """Append the leaves of a schema or a struct whose first Parquet column is `chunk`; return the next."""
    from pyarrow import types

    for place, field in enumerate(fields):
        type_ = field.type
        path, positions = (*names, field.name), (*places, place)
        if types.is_struct(type_):
            chunk = _add_leaves(leaves, type_, path, positions, chunk)
            continue
        is_counted = types.is_nested(type_) or types.is_null(type_)
        is_float = types.is_float32(type_) or types.is_float64(type_)
        leaves.append(_Leaf(path, positions, chunk, _forms(type_), is_float, is_counted))
        chunk += _parquet_columns(type_)
    return chunk


def _parquet_columns(type_: pa.DataType) -> int:
    """Return in how many columns Parquet stores a type."""
    from pyarrow import types

    if not types.is_nested(type_):
        return 1
    return sum(_parquet_columns(type_.field(place).type) for place in range(type_.num_fields))


def _forms(type_: pa.DataType) -> tuple[_Form, _Form] | None:
    """Return how the minimum and the maximum of a type become JSON; None for types without them."""
    from pyarrow import types

    if types.is_string(type_) or types.is_large_string(type_) or types.is_string_view(type_):
        return _string_minimum, _string_maximum
    form: _Form
    if types.is_signed_integer(type_):
        form = int
    elif types.is_decimal(type_):
        form = _decimal
    elif types.is_float64(type_):
        form = _double
    elif types.is_float32(type_):
        form = _float
    elif types.is_date32(type_):
        form = _date
    elif types.is_timestamp(type_) and type_.unit != "ns":
        form = _timestamp if type_.tz is None else _instant
    else:
        return None
    return form, form


def _decimal(value: Any) -> Any:
    # Without an exponent, which not every reader of decimals parses.
    return orjson.Fragment(format(value, "f"))


def _double(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _float(value: float) -> Any:
    import numpy as np

    # As Delta does, the shortest digits that are this value in single precision.
    return orjson.Fragment(str(np.float32(value))) if math.isfinite(value) else None


def _date(value: Any) -> Any:
    return value.isoformat()


def _timestamp(value: Any) -> Any:
    # Delta also cuts maxima: its readers allow for the missing microseconds.
    return value.isoformat(timespec="milliseconds")


def _instant(value: Any) -> str:
    return f"{_timestamp(value.replace(tzinfo=None))}Z"  # Parquet's are in UTC


def _string_minimum(value: str) -> str:
    """Return a prefix, which precedes everything that the value precedes.

    >>> _string_minimum("a" * 40) == "a" * 32
    True
    """
    return value[:_PREFIX]


def _string_maximum(value: str) -> str | None:
    """Return a short string that is at least the value, in the order of UTF-8; None if there is none.

    Delta's `truncateMaxStringAgg`: a prefix, then the last character of ASCII or of Unicode, whichever is greater than
    the character it replaces. Delta counts units of UTF-16: a character beyond U+FFFF has two.

    >>> _string_maximum("a" * 40) == "a" * 32 + chr(0x7F), _string_maximum(chr(0x10FFFF) * 40)
    (True, None)
    """
    if _units(value) <= _PREFIX:
        return value
    units = 0
    for place, character in enumerate(value):
        if units > _PREFIX_MAX:
            return None
        if units >= _PREFIX and character != _LAST:
            return value[:place] + (_LAST_ASCII if character < _LAST_ASCII else _LAST)
        units += _units(character)
    return value if units <= _PREFIX_MAX else None


def _units(text: str) -> int:
    return len(text) + sum(character > "\uffff" for character in text)


def _null_count(chunks: Sequence[Any]) -> int | None:
    """Return how many nulls the chunks of a leaf have; None if one does not say."""
    if all(chunk is not None and chunk.has_null_count for chunk in chunks):
        return sum(int(chunk.null_count) for chunk in chunks)
    return None


def _bounds(leaf: _Leaf, groups: Sequence[Any], chunks: Sequence[Any]) -> tuple[Any, Any]:
    """Return a leaf's minimum and maximum as JSON values, None where it has none."""
    if leaf.has_nan or leaf.forms is None:
        return None, None
    known = []
    for group, chunk in zip(groups, chunks, strict=True):
        if chunk is None:
            return None, None
        if chunk.has_null_count and chunk.null_count == group.num_rows:
            continue
        if not chunk.has_min_max:
            return None, None
        known.append(chunk)
    return _bound(known, "min", min, leaf.forms[0]), _bound(known, "max", max, leaf.forms[1])


def _bound(chunks: Sequence[Any], name: str, choose: Callable[[Sequence[Any]], Any], form: _Form) -> Any:
    try:
        values = [getattr(chunk, name) for chunk in chunks]
    except (OverflowError, ValueError):  # a year that Python lacks, or bytes that are no UTF-8
        return None
    # Python compares strings by code points, which is the order of their UTF-8.
    return form(choose(values)) if values else None


def _put(values: dict[str, Any], names: tuple[str, ...], value: Any) -> None:
    """Add a value, unless it is None, to nested objects, which are created in any case."""
    for name in names[:-1]:
        values = values.setdefault(name, {})
    if value is not None:
        values[names[-1]] = value
