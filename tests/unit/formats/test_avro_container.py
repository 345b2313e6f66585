"""Avro's files, as fastavro writes them, in every codec; damaged ones, to the damage."""

from __future__ import annotations

import io
import json
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from headwater.pipelines.formats.avro.arrays import arrow_type
from headwater.pipelines.formats.avro.columns import columns, parsed
from headwater.pipelines.formats.avro.container import _bytes, _long, header
from headwater.pipelines.sources.avro_files import rows_of

SCHEMA = {
    "type": "record",
    "name": "r",
    "fields": [
        {"name": "id", "type": "int"},
        {"name": "e", "type": {"type": "enum", "name": "E", "symbols": ["A", "B"]}},
        {"name": "f", "type": {"type": "fixed", "name": "F", "size": 2}},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
    ],
}
ROWS: list[Any] = [{"id": n, "e": "AB"[n % 2], "f": b"ab", "tags": ["x"] * (n % 3)} for n in range(5000)]


def file(codec: str = "null", rows: Any = ROWS, schema: Any = SCHEMA) -> bytes:
    out = io.BytesIO()
    fastavro.writer(out, json.loads(json.dumps(schema)), rows, codec=codec, sync_interval=4000)
    return out.getvalue()


def read(content: bytes, schema: Any = SCHEMA) -> tuple[list[Any], str | None]:
    """Rows before the damage, and what is said of it."""
    whole: Any = arrow_type(columns(parsed(json.dumps(schema))))
    kind = list(whole)
    own = [("_file", pa.string()), ("_value", pa.binary()), ("_error", pa.string())]
    batches = list(rows_of("a.avro", content, pa.schema([*kind, *own]), len(kind)))
    found = [row for batch in batches for row in batch.to_pylist()]
    assert {row.pop("_file") for row in found} <= {"a.avro"}
    errors = [row.pop("_error") for row in found]
    assert all(row.pop("_value") is None for row in found)
    bad = [error for error in errors if error is not None]
    assert errors[: len(errors) - len(bad)] == [None] * (len(errors) - len(bad))
    return (found[:-1], bad[0]) if bad else (found, None)


@pytest.mark.parametrize("codec", ["null", "deflate", "bzip2", "xz"])
def test_a_file_is_read_in_every_codec(codec: str) -> None:
    assert read(file(codec)) == (ROWS, None)


def test_snappy_and_zstandard_are_decompressed() -> None:
    import binascii

    import cramjam

    content = file(rows=ROWS[:10])
    for codec in ("snappy", "zstandard"):
        head = content.replace(b"\x14avro.codec\x08null", b"\x14avro.codec" + bytes([2 * len(codec)]) + codec.encode())
        assert head != content
        found = header(head)
        count, position = _long(head, found.end)
        data, _ = _bytes(head, position)
        packed = bytes(cramjam.zstd.compress(data))
        if codec == "snappy":
            packed = bytes(cramjam.snappy.compress_raw(data)) + binascii.crc32(data).to_bytes(4, "big")
        size = 2 * len(packed)
        block = bytes([2 * count]) + bytes([size & 0x7F | 0x80, size >> 7]) + packed + found.sync
        assert read(head[: found.end] + block) == (ROWS[:10], None)


def test_a_file_is_read_as_columns_that_are_declared_otherwise() -> None:
    wanted = {
        "type": "record",
        "name": "x",
        "fields": [
            {"name": "new", "type": ["null", "string"]},
            {"name": "id", "type": "double"},
            {"name": "e", "type": "string"},
        ],
    }  # fmt: skip
    rows, error = read(file(rows=ROWS[:3]), wanted)
    assert error is None
    assert rows == [{"new": None, "id": float(n), "e": "AB"[n % 2]} for n in range(3)]


@pytest.mark.parametrize("cut", [1, 20, 5000, 10_000])
def test_rows_before_the_damage_stand(cut: int) -> None:
    rows, error = read(file()[:-cut])
    assert error is not None
    assert error.startswith("the file cannot be read: ")
    assert rows == ROWS[: len(rows)]


NO_FILES = [b"", b"Obj\x01", b"PAR1 no avro", file()[:40], file(rows=ROWS[:1]).replace(b"null", b"lz99")]


@pytest.mark.parametrize("content", NO_FILES)
def test_what_is_no_file_is_told(content: bytes) -> None:
    rows, error = read(content)
    assert rows == []
    assert error is not None


def test_a_damaged_value_ends_the_file() -> None:
    schema = {"type": "record", "name": "r", "fields": [{"name": "s", "type": "string"}]}
    content = file(rows=[{"s": "good"}, {"s": "b\x01d"}, {"s": "good"}], schema=schema)
    rows, error = read(content.replace(b"b\x01d", b"b\xffd"), schema)
    assert rows == [{"s": "good"}]
    assert error == "the file cannot be read: a text is not UTF-8"
