"""Rows as JSON lines: chunks, limits, the end."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from headwater.api.sql_gateway import QueryEnd, RowForm
from headwater.cli.sql_service.result_rows import CHUNK_ROWS_MAX, encoded, encoder_of


class Field:
    """A column as Spark's schema has it."""

    def __init__(self, kind: str) -> None:
        self.dataType = self
        self._kind = kind

    def typeName(self) -> str:
        return self._kind


class Schema:
    def __init__(self, *kinds: str) -> None:
        self.fields = [Field(kind) for kind in kinds]


def answer(rows: Iterator[Sequence[Any]], rows_max: int, bytes_max: int = 10**9) -> tuple[list[bytes], QueryEnd]:
    schema: Any = Schema("integer")
    *chunks, end = encoded(rows, encoder_of(RowForm.NDJSON, schema), rows_max, bytes_max)
    assert isinstance(end, QueryEnd)
    assert all(isinstance(chunk, bytes) for chunk in chunks)
    return [chunk for chunk in chunks if isinstance(chunk, bytes)], end


def endless(read: list[int]) -> Iterator[tuple[int]]:
    for number in range(10**9):
        read.append(number)
        yield (number,)


def values(chunks: list[bytes]) -> list[Any]:
    return [json.loads(line) for line in b"".join(chunks).splitlines()]


def test_a_result_within_its_limits_is_whole() -> None:
    chunks, end = answer(iter([(1,), (None,)]), 2)
    assert (values(chunks), end.rows, end.truncated) == ([[1], [None]], 2, None)
    assert answer(iter([]), 5)[0] == []


def test_rows_beyond_the_limit_are_not_read() -> None:
    read: list[int] = []
    chunks, end = answer(endless(read), CHUNK_ROWS_MAX + 1)
    assert [len(values([chunk])) for chunk in chunks] == [CHUNK_ROWS_MAX, 1]
    assert (end.rows, end.truncated, len(read)) == (CHUNK_ROWS_MAX + 1, "rows", CHUNK_ROWS_MAX + 2)


def test_bytes_beyond_the_limit_are_not_sent() -> None:
    chunks, end = answer(endless([]), 10**6, len(b"[0]\n") * 3 + 1)
    assert (values(chunks), end.rows, end.truncated) == ([[0], [1], [2]], 3, "bytes")
