"""Interface of decoders of framed values: a batch in, an Arrow array and the rows' faults out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from headwater.pipelines.formats.framing import ArrowArray, Frames
from headwater.pipelines.formats.registry_client import RegisteredSchema


@dataclass(frozen=True, slots=True)
class Incompatible:
    """The reason why values of a writer's schema cannot be read by the reader's schema."""

    schema_id: int
    why: str


@dataclass(frozen=True, slots=True)
class Batch:
    """Decoded values: null for rows in `faults` (invalid bytes) or `incompatible`."""

    values: ArrowArray
    faults: Mapping[int, str]
    incompatible: Mapping[int, Incompatible]

    @classmethod
    def joined(cls, parts: Sequence[Batch]) -> Batch:
        """Concatenate batches."""
        faults: dict[int, str] = {}
        incompatible: dict[int, Incompatible] = {}
        begin = 0
        for part in parts:
            faults |= {begin + row: why for row, why in part.faults.items()}
            incompatible |= {begin + row: why for row, why in part.incompatible.items()}
            begin += len(part.values)
        return cls(pa.concat_arrays([part.values for part in parts]), faults, incompatible)


class Schemas(Protocol):
    """The source of writers' schemas: a registry's client."""

    def schema(self, schema_id: int) -> RegisteredSchema:
        """Return the schema with an id. Raises NotFoundError."""

    def subjects(self, schema_id: int) -> list[str]:
        """Return the subjects with this schema."""


class Decoder(Protocol):
    """A format's decoder for one reader's schema. `record` is the full name of the values' record, '' if absent."""

    record: str

    @property
    def type(self) -> pa.DataType:
        """The values' Arrow type."""

    def decode(self, frames: Frames) -> Batch:
        """Decode the values of several frames."""


class Encoder(Protocol):
    """A format's encoder for one writer's schema."""

    def encode(self, rows: ArrowArray, schema_id: int) -> ArrowArray:
        """Encode rows as a binary array of framed values; null for a null row. Raises UnwritableError."""


class UnwritableError(ValueError):
    """A row does not fit the schema; the message names the column."""
