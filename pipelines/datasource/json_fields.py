"""Fields of JSON values as additional columns of records, for readers of topics with JSON values.

Parsing JSON takes the largest part of a stage's time, and Spark's parser creates objects for every field. The task that
decodes the records parses unambiguous values with compiled loops (`json_kernels`), and marks each record as parsed or
unparsed; Spark's parser handles the unparsed records with the same results. `headwater.pipelines.formats.json` combines
both.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.types import (
    BooleanType,
    DataType,
    DateType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from headwater.pipelines.schemas import schema_ids

if TYPE_CHECKING:
    import numpy.typing as npt
    import pyarrow as pa

__all__ = ["FIELDS_MAX", "TAKEN", "JsonFields", "field_column", "warm_parser"]

FIELDS_MAX: Final = 200  # in a batch of 20,000 records, each field takes 9 bytes a record during parsing
TAKEN: Final = "_json_taken"  # whether the other columns hold the value's fields

_TYPES: Final[dict[str, DataType]] = {
    "bigint": LongType(),
    "int": IntegerType(),
    "double": DoubleType(),
    "boolean": BooleanType(),
    "string": StringType(),
    "timestamp": TimestampType(),
    "date": DateType(),
}


_ESCAPED = re.compile(r'["\\\x00-\x1f]')


def field_column(position: int) -> str:
    """Return the name of a field's column."""
    return f"_json_{position}"


def _is_taken(field: Sequence[Any]) -> bool:
    """Return whether the loops support a field (name, type): Spark also parses names with JSON escapes."""
    name, type_ = field
    return isinstance(name, str) and name != "" and not _ESCAPED.search(name) and type_ in _TYPES


@dataclass(frozen=True, slots=True)
class JsonFields:
    """Names and types (in SQL's notation) of the fields; picklable.

    `framed`: a schema id precedes the JSON, as in Confluent's serializers.

    >>> JsonFields.parse(JsonFields((("id", "bigint"), ("name", "string"))).text()).fields[1]
    ('name', 'string')
    """

    fields: tuple[tuple[str, str], ...]
    framed: bool = False

    @classmethod
    def of(cls, schema: StructType, *, framed: bool = False) -> JsonFields | None:
        """Return a schema's fields; None if there are none, too many, or one that only Spark's parser supports."""
        fields = tuple((field.name, field.dataType.simpleString()) for field in schema.fields)
        return cls(fields, framed) if 0 < len(fields) <= FIELDS_MAX and all(map(_is_taken, fields)) else None

    @classmethod
    def parse(cls, text: str) -> JsonFields:
        """Parse the fields from an option's text. Raises ValueError."""
        given = json.loads(text)
        if not isinstance(given, dict) or given.keys() - {"fields", "framed"}:
            raise ValueError("no object with 'fields' and, at most, 'framed'")
        found, framed = given.get("fields"), given.get("framed", False)
        if not isinstance(found, list) or not 0 < len(found) <= FIELDS_MAX:
            raise ValueError(f"'fields' is no list of 1 to {FIELDS_MAX} fields")
        for pair in found:
            if not (isinstance(pair, list) and len(pair) == 2 and _is_taken(pair)):
                raise ValueError(f"{pair!r} is no field's name and type")
        if not isinstance(framed, bool):
            raise ValueError("'framed' is neither true nor false")
        return cls(tuple((name, type_) for name, type_ in found), framed)

    def text(self) -> str:
        """Return the fields as an option's text."""
        return json.dumps({"fields": self.fields, "framed": self.framed})

    def columns(self) -> list[StructField]:
        """Return the additional columns of records."""
        named = [StructField(field_column(i), _TYPES[type_]) for i, (_, type_) in enumerate(self.fields)]
        return [StructField(TAKEN, BooleanType()), *named]

    def added_to(self, records: pa.RecordBatch) -> pa.RecordBatch:
        """Return the records with these columns added."""
        import pyarrow as pa

        parser = _parser(self)
        return pa.RecordBatch.from_arrays(
            [*records.columns, *parser.columns(records.column("value"))],
            schema=pa.schema([*records.schema, *parser.schema]),
        )


def warm_parser() -> None:
    """Compile the loops, or load them from numba's cache."""
    import pyarrow as pa

    records = pa.RecordBatch.from_arrays([pa.array([b'{"name":"value"}'], pa.binary())], names=["value"])
    JsonFields((("name", "string"),)).added_to(records)


@cache
def _parser(fields: JsonFields) -> _Parser:
    return _Parser(fields)


class _Parser:
    """The fields as arguments of the loops, created once per worker."""

    def __init__(self, given: JsonFields) -> None:
        import numpy as np
        import pyarrow as pa

        from headwater.pipelines.datasource import json_kernels as kernels

        arrow: dict[str, tuple[int, pa.DataType]] = {
            "bigint": (kernels.LONG, pa.int64()),
            "int": (kernels.INT, pa.int32()),
            "double": (kernels.DOUBLE, pa.float64()),
            "boolean": (kernels.BOOLEAN, pa.bool_()),
            "string": (kernels.STRING, pa.string()),
            "timestamp": (kernels.TIMESTAMP, pa.timestamp("us", "UTC")),
            "date": (kernels.DATE, pa.date32()),
        }
        fields = given.fields
        self._frame_bytes = schema_ids.HEADER_BYTES if given.framed else 0
        names = [name.encode() for name, _ in fields]
        self._names = np.frombuffer(b"".join(names), np.uint8)
        self._name_ends = np.cumsum([len(name) for name in names], dtype=np.int64)
        self._kinds = np.array([arrow[type_][0] for _, type_ in fields], np.int64)
        self._types = [arrow[type_][1] for _, type_ in fields]
        named = [pa.field(field_column(i), type_) for i, type_ in enumerate(self._types)]
        self.schema = [pa.field(TAKEN, pa.bool_()), *named]

    def columns(self, values: Any) -> list[Any]:
        """Return the columns of several values (an Arrow binary array)."""
        import numpy as np
        import pyarrow as pa

        from headwater.logtier.records.columns import read_only
        from headwater.pipelines.datasource import json_kernels as kernels

        rows = len(values)
        _, ends, bytes_ = values.buffers()
        offsets = read_only(ends, np.int32)[values.offset : values.offset + rows + 1]
        data = read_only(bytes_)
        numbers = np.empty((len(self._types), rows), np.int64)
        found = np.zeros((len(self._types), rows), np.uint8)
        taken = np.empty(rows, np.uint8)
        kernels.parse_objects(
            data,
            offsets,
            self._frame_bytes,
            self._names,
            self._name_ends,
            self._kinds,
            numbers,
            numbers.view(np.float64),
            found,
            taken,
        )
        arrays: list[Any] = [pa.Array.from_buffers(pa.bool_(), rows, [None, _bits(taken)])]
        for position, kind in enumerate(self._kinds):
            there, cells = found[position], numbers[position]
            valid = None if there.all() else _bits(there)
            if kind == kernels.STRING:
                buffers = [valid, *_strings(data, cells, there)]
            elif kind == kernels.BOOLEAN:
                buffers = [valid, _bits(cells)]
            elif kind in (kernels.INT, kernels.DATE):
                buffers = [valid, _buffer(cells.astype(np.int32))]
            else:
                buffers = [valid, _buffer(cells)]
            arrays.append(pa.Array.from_buffers(self._types[position], rows, buffers))
        return arrays


def _buffer(array: Any) -> pa.Buffer:
    import pyarrow as pa

    return pa.py_buffer(array)


def _bits(flags: npt.NDArray[Any]) -> pa.Buffer:
    import numpy as np

    return _buffer(np.packbits(flags.astype(np.bool_), bitorder="little"))


def _strings(data: npt.NDArray[Any], places: npt.NDArray[Any], there: npt.NDArray[Any]) -> list[pa.Buffer]:
    """Return offsets and bytes of a column of strings."""
    import numpy as np

    from headwater.pipelines.datasource import json_kernels as kernels

    offsets = np.zeros(len(places) + 1, np.int32)
    size = int((places[there != 0] & kernels.SIZE).sum())
    out = np.empty(size, np.uint8)
    kernels.copy_strings(data, places, there, offsets, out)
    return [_buffer(offsets), _buffer(out)]
