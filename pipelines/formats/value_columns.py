"""The columns of decoded values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from headwater.pipelines.formats.framed_tasks import Reader


@dataclass(frozen=True, slots=True)
class ValueColumns:
    """The columns of a value, and the required ones among them. Formats without fields use empty columns.

    `options` are the options of Spark's JSON or CSV parser and writer. `reader` contains the parameters of Avro and
    Protobuf.
    """

    schema: StructType | None = None
    required: tuple[str, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict)
    reader: Reader | None = None
