"""What decoders of framed values have in common: a batch in, an Arrow array and what is wrong with its rows out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from headwater.pipelines.formats.framing import ArrowArray, Frames
from headwater.pipelines.formats.registry_client import RegisteredSchema


@dataclass(frozen=True, slots=True)
class Incompatible:
    """Why values of a writer's schema cannot be read as the reader's."""

    schema_id: int
    why: str


@dataclass(frozen=True, slots=True)
class Batch:
    """Decoded values: null where a row is among `faults` (bytes that are no value) or `incompatible`."""

    values: ArrowArray
    faults: Mapping[int, str]
    incompatible: Mapping[int, Incompatible]

    @classmethod
    def joined(cls, parts: Sequence[Batch]) -> Batch:
        """Batches one after the other."""
        faults: dict[int, str] = {}
        incompatible: dict[int, Incompatible] = {}
        begin = 0
        for part in parts:
            faults |= {begin + row: why for row, why in part.faults.items()}
            incompatible |= {begin + row: why for row, why in part.incompatible.items()}
            begin += len(part.values)
        return cls(pa.concat_arrays([part.values for part in parts]), faults, incompatible)


class Schemas(Protocol):
    """Where writers' schemas come from: a registry's client."""

    def schema(self, schema_id: int) -> RegisteredSchema:
        """The schema with an id. Raises NotFoundError."""

    def subjects(self, schema_id: int) -> list[str]:
        """The subjects that have it."""


class Decoder(Protocol):
    """A format's decoder for one reader's schema. `record` is the full name of what the values are, '' without one."""

    record: str

    @property
    def type(self) -> pa.DataType:
        """Of the values."""

    def decode(self, frames: Frames) -> Batch:
        """The values of some frames."""


class Encoder(Protocol):
    """A format's encoder for one writer's schema."""

    def encode(self, rows: ArrowArray, schema_id: int) -> ArrowArray:
        """A binary array of the rows' values, framed; a row that is null has none. Raises UnwritableError."""


class UnwritableError(ValueError):
    """A row that the schema does not take; the message names the column."""
