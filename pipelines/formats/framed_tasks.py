"""Decoding and encoding of framed values in Spark's workers, which import this module by name and cache their state.

A `Reader` or a `Writer` contains all parameters for a worker; each process creates its decoder or encoder once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import numpy as np
import pyarrow as pa

from headwater.pipelines import columns
from headwater.pipelines.datasource.errors import SourceError
from headwater.pipelines.formats.batches import Batch, Decoder, Encoder, Incompatible, UnwritableError
from headwater.pipelines.formats.framing import ArrowArray, Frames, frames
from headwater.pipelines.formats.registry_client import (
    AVRO,
    PROTOBUF,
    Connection,
    NotFoundError,
    RegisteredSchema,
    RegistryClient,
    RegistryError,
    client_of,
)
from headwater.pipelines.schemas.errors import InvalidSchemaError

KEPT: Final = 256  # decoders and encoders cached in one process
SHOWN_SUBJECTS: Final = 3


@dataclass(frozen=True, slots=True)
class Reader:
    """Parameters of reading. `part` is the values' part of a record; `fails`: an incompatible value stops the stage."""

    format: str
    schema: RegisteredSchema
    connection: Connection
    topic: str
    message: str | None = None
    part: str = "value"
    fails: bool = False


@dataclass(frozen=True, slots=True)
class Writer:
    """Parameters of writing."""

    format: str
    schema: RegisteredSchema
    topic: str
    message: str | None = None
    part: str = "value"


def new_decoder(reader: Reader, schemas: Any) -> Decoder:
    """Create a decoder. Raises ValueError (such as InvalidSchemaError) for a schema that does not map to columns."""
    if reader.format == "avro":
        from headwater.pipelines.formats.avro.decoder import AvroDecoder

        return AvroDecoder(reader.schema, schemas)
    from headwater.pipelines.formats.protobuf.decoder import ProtobufDecoder

    return ProtobufDecoder(reader.schema, reader.message, schemas)


@lru_cache(KEPT)
def _decoder(reader: Reader) -> Decoder:
    return new_decoder(reader, client_of(reader.connection))


@lru_cache(KEPT)
def _encoder(writer: Writer) -> Encoder:
    if writer.format == "avro":
        from headwater.pipelines.formats.avro.encoder import AvroEncoder

        return AvroEncoder(writer.schema)
    from headwater.pipelines.formats.protobuf.encoder import ProtobufEncoder

    return ProtobufEncoder(writer.schema, writer.message)


@dataclass(frozen=True, slots=True)
class Encode:
    """Writes batches of rows as framed values."""

    writer: Writer
    schema_id: int

    def run(self, rows: pa.Array) -> pa.Array:  # type: ignore[type-arg] # Spark looks at these types
        """Encode a batch; Spark reads the type hints of this method. Raises SourceError."""
        given: Any = rows
        writer = self.writer
        try:
            found: pa.Array[Any] = _encoder(writer).encode(given, self.schema_id)
            return found
        except UnwritableError as error:
            where = f"a {writer.part} of the topic '{writer.topic}'"
            raise SourceError(f"a row cannot be written as {where}: {error}") from None


def decoded(reader: Reader, names: Sequence[str], batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Decode batches with the columns of ORIGIN to batches with `names` (the value's), ORIGIN and ERROR."""
    for batch in batches:
        raw = batch.column(columns.VALUE)
        found = _decode(reader, frames(raw))
        errors = _told(reader, found, batch)
        values = [found.values] if list(names) == [reader.part] and not _is_struct(found) else found.values.flatten()
        origin = [batch.column(name) for name in columns.ORIGIN]
        yield pa.RecordBatch.from_arrays(
            [*values, *origin, _error_column(errors, len(batch))], names=[*names, *columns.ORIGIN, columns.ERROR]
        )


def with_key(reader: Reader, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Add the column of decoded keys to batches; null for a record without a key."""
    for batch in batches:
        raw = batch.column(columns.KEY)
        present = np.asarray(raw.is_valid())
        found = _decode(reader, frames(raw))
        told = _told(reader, found, batch)
        errors = {row: why for row, why in told.items() if present[row]}
        before = batch.column(columns.ERROR).to_pylist()
        said = [own if own is not None else errors.get(row) for row, own in enumerate(before)]
        index = batch.schema.get_field_index(columns.ERROR)
        arrays = [*batch.columns[:index], pa.array(said, pa.string()), *batch.columns[index + 1 :], found.values]
        yield pa.RecordBatch.from_arrays(arrays, names=[*batch.schema.names, "key"])


def decoded_events(
    readers: Mapping[str, Reader], only: str | None, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Decode batches with ORIGIN (and with `columns.EVENT`, if a header gives the type) to events.

    All types: EVENT, a struct for each type, ORIGIN, ERROR. One type, `only`: its fields instead of EVENT and structs;
    records of other types are skipped, but not records without a type.
    """
    for batch in batches:
        found = frames(batch.column(columns.VALUE))
        first = next(iter(readers.values()))
        if columns.EVENT in batch.schema.names:
            kinds = batch.column(columns.EVENT).to_pylist()
            faults = {
                row: found.faults.get(row, "the record does not say which event it is")
                for row, kind in enumerate(kinds)
                if kind is None
            }
        else:
            kinds, faults = _kinds(readers, first, found)
        errors = dict(faults)
        structs: dict[str, ArrowArray] = {}
        for name in readers if only is None else [only]:
            rows = np.array([row for row, kind in enumerate(kinds) if kind == name and row not in faults], np.int64)
            part = Frames(
                found.data, found.starts[rows], found.ends[rows], found.ids[rows],
                {place: found.faults[row] for place, row in enumerate(rows.tolist()) if row in found.faults},
            )  # fmt: skip
            own = _decode(readers[name], part)
            wrong = _told(readers[name], own, batch, rows)
            errors |= {int(rows[place]): why for place, why in wrong.items()}
            structs[name] = _scattered(own.values, rows, len(batch), bad=wrong)
        origin = [batch.column(name) for name in columns.ORIGIN]
        if only is None:
            unknown = {
                row: f"the event '{kind}' is not declared"
                for row, kind in enumerate(kinds)
                if kind is not None and kind not in readers and row not in errors
            }
            out = [pa.array(kinds, pa.string()), *structs.values(), *origin]
            names = [columns.EVENT, *structs, *columns.ORIGIN, columns.ERROR]
            yield pa.RecordBatch.from_arrays([*out, _error_column(errors | unknown, len(batch))], names=names)
        else:
            kept = pa.array([kind == only or row in errors for row, kind in enumerate(kinds)], pa.bool_())
            values = structs[only]
            names = [*(values.type.field(i).name for i in range(values.type.num_fields)), *columns.ORIGIN]
            whole = pa.RecordBatch.from_arrays(
                [*values.flatten(), *origin, _error_column(errors, len(batch))], names=[*names, columns.ERROR]
            )
            yield whole.filter(kept)


def _kinds(readers: Mapping[str, Reader], any_of: Reader, found: Frames) -> tuple[list[str | None], dict[int, str]]:
    """Map values to events by the record names of their writers' schemas; an unknown record type is a fault."""
    by_record = {_decoder(reader).record: name for name, reader in readers.items()}
    client = client_of(any_of.connection)
    kinds: list[str | None] = [None] * len(found.ids)
    faults = dict(found.faults)
    known: dict[Any, str] = {}
    for row, schema_id in enumerate(found.ids.tolist()):
        if schema_id < 0:
            continue
        place = (schema_id, _first_bytes(found, row)) if any_of.format == "protobuf" else schema_id
        try:
            if place not in known:
                known[place] = _record_of(client, any_of.format, place)
        except (NotFoundError, ValueError) as error:
            faults[row] = str(error)
        except RegistryError as error:
            raise SourceError(str(error)) from None
        else:
            kinds[row] = by_record.get(known[place], known[place])
    return kinds, faults


def _first_bytes(found: Frames, row: int) -> bytes:
    """The message indexes before a Protobuf message, which identify its type."""
    from headwater.pipelines.formats.protobuf.decoder import message_indexes

    payload = bytes(found.data[found.starts[row] : min(found.ends[row], found.starts[row] + 400)])
    try:
        return payload[: message_indexes(payload)[1]]
    except ValueError:
        return b""


@lru_cache(10_000)
def _record_of(client: RegistryClient, kind: str, place: Any) -> str:
    """Return the full name of the record type of values. Raises NotFoundError, ValueError."""
    schema_id = place if kind == "avro" else place[0]
    schema = client.schema(schema_id)
    try:
        if kind == "avro" and schema.schema_type == AVRO:
            from headwater.pipelines.formats.avro.columns import parsed, record_name

            found = record_name(parsed(schema.text, schema.references))
        elif kind == "protobuf" and schema.schema_type == PROTOBUF:
            from headwater.pipelines.formats.protobuf.columns import message_at, pool_of
            from headwater.pipelines.formats.protobuf.decoder import message_indexes

            found = message_at(pool_of(schema.text, schema.references), message_indexes(place[1])[0]).full_name
        else:
            raise InvalidSchemaError(f"it is {schema.schema_type}")
    except ValueError as error:
        raise ValueError(f"the schema with the id {schema_id} tells no event: {error}") from None
    if not found:
        raise ValueError(f"the schema with the id {schema_id} tells no event: it is no record")
    return str(found)


def _decode(reader: Reader, found: Frames) -> Batch:
    try:
        return _decoder(reader).decode(found)
    except RegistryError as error:
        raise SourceError(str(error)) from None


def _told(reader: Reader, found: Batch, batch: pa.RecordBatch, rows: Any = None) -> dict[int, str]:
    """Return the reasons of rows without a value. Raises SourceError for an incompatible value if `reader.fails`."""
    said = {row: why.replace("the value", f"the {reader.part}", 1) for row, why in found.faults.items()}
    for row, why in found.incompatible.items():
        said[row] = _incompatible(reader, why)
        if reader.fails:
            place = row if rows is None else int(rows[row])
            partition, offset = (batch.column(name)[place].as_py() for name in (columns.PARTITION, columns.OFFSET))
            raise SourceError(f"{said[row]} (partition {partition}, offset {offset})")
    return said


@lru_cache(10_000)
def _incompatible(reader: Reader, why: Incompatible) -> str:
    try:
        subjects = client_of(reader.connection).subjects(why.schema_id)
    except RegistryError:
        subjects = []
    named = ", ".join(subjects[:SHOWN_SUBJECTS]) + (", …" if len(subjects) > SHOWN_SUBJECTS else "")
    subject = f" (subject {named})" if named else ""
    return (
        f"topic '{reader.topic}': a {reader.part} of the schema with the id {why.schema_id}{subject} cannot be read as "
        f"the schema here: {why.why}"
    )


def _is_struct(found: Batch) -> bool:
    return pa.types.is_struct(found.values.type)


def _error_column(errors: Mapping[int, str], rows: int) -> ArrowArray:
    if not errors:
        return pa.nulls(rows, pa.string())
    return pa.array([errors.get(row) for row in range(rows)], pa.string())


def _scattered(values: ArrowArray, rows: Any, count: int, *, bad: Mapping[int, str]) -> ArrowArray:
    """Place values at their rows of a batch; all other rows and faulty rows are null."""
    places: Any = np.full(count, -1, np.int64)
    places[rows] = np.arange(len(rows))
    for place in bad:
        places[rows[place]] = -1
    return values.take(pa.array(places, mask=places < 0))
