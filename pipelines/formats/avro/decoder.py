"""Decodes framed Avro values of any writer's schema to one reader's columns."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from headwater.pipelines.formats.avro.arrays import Decoded, TooManyEntriesError, arrow_type
from headwater.pipelines.formats.avro.columns import parsed, record_name
from headwater.pipelines.formats.avro.reading import Reading, UnreadableError
from headwater.pipelines.formats.batches import Batch, Incompatible, Schemas
from headwater.pipelines.formats.framing import Frames
from headwater.pipelines.formats.registry_client import AVRO, NotFoundError, RegisteredSchema
from headwater.pipelines.schemas.errors import InvalidSchemaError

ADDED_MAX = 10_000  # writers of one reader in one process: a topic with more is not written by schemas


class AvroDecoder:
    """Decodes batches. One per reader's schema and process: the decoder caches the programs of writers' schemas."""

    def __init__(self, reader: RegisteredSchema, schemas: Schemas) -> None:
        self._schemas = schemas
        self._reading = Reading(parsed(reader.text, reader.references))
        self.record = record_name(self._reading.reader)
        self._entries: dict[int, int] = {}
        self._refused: dict[int, Incompatible] = {}

    @property
    def type(self) -> pa.DataType:
        """The values' Arrow type."""
        return arrow_type(self._reading.root)

    def decode(self, frames: Frames) -> Batch:
        """Decode the values of several frames."""
        entries = np.full(len(frames.ids), -1, np.int64)
        faults: dict[int, str] = dict(frames.faults)
        incompatible: dict[int, Incompatible] = {}
        for schema_id in np.unique(frames.ids).tolist():
            if schema_id < 0:
                continue
            rows = frames.ids == schema_id
            try:
                entries[rows] = self._entry(schema_id)
            except NotFoundError as error:
                faults |= dict.fromkeys(np.flatnonzero(rows).tolist(), str(error))
            except _RefusedError as error:
                why = error.args[0]
                incompatible |= dict.fromkeys(np.flatnonzero(rows).tolist(), why)
        try:
            decoded = Decoded(self._reading, frames.data, frames.starts, frames.ends, entries)
        except TooManyEntriesError as error:
            if len(entries) == 1:
                return Batch(pa.array([None], self.type), {0: str(error)}, {})
            return Batch.joined([self.decode(part) for part in _halves(frames)])
        for row, why in decoded.errors.items():
            if row in decoded.failed:
                incompatible[row] = Incompatible(int(frames.ids[row]), why)
            else:
                faults[row] = f"the value does not fit the schema with the id {int(frames.ids[row])}: {why}"
        return Batch(decoded.array(self._reading.root), faults, incompatible)

    def _entry(self, schema_id: int) -> int:
        """Return the start of a writer's program. Raises NotFoundError and _RefusedError."""
        if schema_id in self._entries:
            return self._entries[schema_id]
        if schema_id in self._refused:
            raise _RefusedError(self._refused[schema_id])
        writer = self._schemas.schema(schema_id)
        try:
            if writer.schema_type != AVRO:
                raise UnreadableError(f"the schema is {writer.schema_type}, not AVRO")
            if len(self._entries) >= ADDED_MAX:
                raise UnreadableError(f"the topic has more than {ADDED_MAX} writers' schemas")
            entry = self._reading.add(parsed(writer.text, writer.references))
        except (UnreadableError, InvalidSchemaError) as error:
            self._refused[schema_id] = Incompatible(schema_id, str(error))
            raise _RefusedError(self._refused[schema_id]) from None
        self._entries[schema_id] = entry
        return entry


class _RefusedError(Exception):
    """A writer's schema cannot be read; the argument is the reason."""


def _halves(found: Frames) -> list[Frames]:
    middle = len(found.ids) // 2
    parts = []
    for part in (slice(None, middle), slice(middle, None)):
        begin = part.start or 0
        faults: Mapping[int, str] = found.faults
        mine = {row - begin: why for row, why in faults.items() if begin <= row < (part.stop or len(found.ids))}
        parts.append(Frames(found.data, found.starts[part], found.ends[part], found.ids[part], mine))
    return parts
