"""Encodes records as the sink does, and sends nothing: whether every record can be written."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headwater.logtier.records.compression import CODECS
from headwater.pipelines.sinks.exactly_once.encoded_batches import ENCODED_DDL
from headwater.pipelines.sinks.exactly_once.exactly_once_tasks import Encode, encoding

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["check_encoding"]


def check_encoding(records: DataFrame, compression: str, batch_bytes: int, message_bytes_max: int) -> None:
    """Encode all records. Raises Spark's error, of the first task that cannot."""
    what = Encode(
        0, 1, CODECS[compression], min(batch_bytes, message_bytes_max), None, message_bytes_max, is_dropped=True
    )
    records.mapInArrow(encoding(what), ENCODED_DDL).write.format("noop").mode("overwrite").save()
