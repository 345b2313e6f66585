"""The exactly-once topic sink's work in Spark's tasks: encode rows as record batches, then send the batches.

There are two passes with a shuffle between them. The first encodes the rows where they are, one record batch at a time
per output partition. The second has one task per output partition, which assigns the shared producer's id, epoch and
sequence numbers to its batches and sends them: no other task sends to that partition. Shuffling whole batches (see
`encoded_batches`) costs a fraction of shuffling rows, and keeps the rows' order: by encoding task, then by the batch's
number within the task.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from headwater.logtier.client.cluster import ClientConfig, TopicPartition
from headwater.logtier.client.errors import BrokerError, ClientError
from headwater.logtier.client.producer import IdempotentProducer, ProducerConfig
from headwater.logtier.client.producer_state import ProducerIdentity
from headwater.pipelines.datasource.errors import SourceError
from headwater.pipelines.datasource.kept_clients import kept_client
from headwater.pipelines.sinks.exactly_once.encoded_batches import EncodedReader, EncodedWriter
from headwater.pipelines.sinks.exactly_once.exactly_once_verdict import NO_ANSWER

if TYPE_CHECKING:
    import pyarrow as pa

    from headwater.logtier.records.columns_encode import BatchEncoder

__all__ = ["REPORT_DDL", "Encode", "Send", "encoding", "sending"]

REPORT_DDL: Final = (
    "target INT, stage_id INT, first_attempt BOOLEAN, records BIGINT, next_sequence INT, error_code INT, error STRING"
)
# Rows gathered before encoding, so that batches fill even with many partitions.
GATHERED_BYTES_MAX: Final = 16 << 20
ERROR_CHARS_MAX: Final = 1000

_Batches: TypeAlias = "Iterator[pa.RecordBatch]"


@dataclass(frozen=True, slots=True)
class Encode:
    """The first pass for one topic, whose partitions are the targets from `first_target` on.

    `folder` stores the batches for the second pass, if all tasks can read it. A batch of more than `message_bytes_max`
    has one record, which the topic does not accept. `is_dropped`: the batches go nowhere, only faults count.
    """

    first_target: int
    partition_count: int
    codec: int
    batch_bytes: int
    folder: str | None
    message_bytes_max: int | None = None
    is_dropped: bool = False


@dataclass(frozen=True, slots=True)
class Send:
    """The second pass: `targets` are the output partitions of all topics.

    `after_send` is for tests: called after all batches are acknowledged, with the target and whether this is the first
    attempt.
    """

    client: ClientConfig
    producer: ProducerConfig
    identity: ProducerIdentity
    first_sequences: Mapping[TopicPartition, int]
    targets: tuple[TopicPartition, ...]
    after_send: Callable[[int, bool], None] | None = None


def encoding(what: Encode) -> Callable[[_Batches], _Batches]:
    """The function for `mapInArrow` from records (key, value, and optionally headers, timestamp_ms) to ENCODED_DDL."""

    def encode(rows: _Batches) -> _Batches:
        return _encode(rows, what)

    return encode


def sending(what: Send) -> Callable[[_Batches], _Batches]:
    """The function for `mapInArrow` from one target's batches (ENCODED_DDL, in order) to its report (REPORT_DDL)."""

    def send(batches: _Batches) -> _Batches:
        return _send(batches, what)

    return send


# -- the first pass --------------------------------------------------------------------------------------------------


@cache
def _load_encoder() -> type[BatchEncoder]:
    """Import the encoder once per worker, and exclude its modules from garbage collection after each task."""
    from headwater.logtier.records.columns_encode import BatchEncoder, warm_encoder

    warm_encoder()
    gc.collect()
    gc.freeze()
    return BatchEncoder


def _encode(rows: _Batches, what: Encode) -> _Batches:
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    task = context.partitionId()
    encoder = _load_encoder()(what.partition_count, codec=what.codec, batch_bytes=what.batch_bytes)
    with EncodedWriter(task, what.first_target, what.folder) as out:
        for gathered in _gathered(rows, min(what.batch_bytes * what.partition_count, GATHERED_BYTES_MAX)):
            for encoded in encoder.encode(gathered, now_ms=int(time.time() * 1000)):
                if what.message_bytes_max is not None and len(encoded.data) > what.message_bytes_max:
                    raise SourceError(
                        f"a record takes {len(encoded.data):,} bytes, and the topic's max.message.bytes is "
                        f"{what.message_bytes_max:,}"
                    )
                if not what.is_dropped:
                    out.add(encoded.partition, encoded.record_count, encoded.data)
                if out.is_full:
                    yield from out.take()
        yield from out.take()


def _gathered(rows: _Batches, bytes_max: int) -> _Batches:
    """The rows regrouped into larger pieces."""
    import pyarrow as pa

    pieces: list[pa.RecordBatch] = []
    size = 0
    for piece in rows:
        if piece.num_rows == 0:
            continue
        pieces.append(piece)
        size += piece.nbytes
        if size >= bytes_max:
            yield from pa.Table.from_batches(pieces).combine_chunks().to_batches()
            pieces, size = [], 0
    if pieces:
        yield from pa.Table.from_batches(pieces).combine_chunks().to_batches()


# -- the second pass -------------------------------------------------------------------------------------------------


def _send(batches: _Batches, what: Send) -> _Batches:
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    target, is_first = context.partitionId(), context.attemptNumber() == 0
    records, next_sequence, code, error = 0, 0, 0, ""
    if is_first:
        try:
            records, next_sequence = _send_all(batches, what, target)
        except BrokerError as refused:
            code, error = refused.code, str(refused)
        except ClientError as lost:
            code, error = NO_ANSWER, str(lost)
        if what.after_send is not None:
            what.after_send(target, is_first)
    for _ in batches:
        pass  # Spark's worker cannot be used again with input left over
    yield _report(target, context.stageId(), is_first, records, next_sequence, code, error[:ERROR_CHARS_MAX])


def _send_all(batches: _Batches, what: Send, target: int) -> tuple[int, int]:
    """The number of records sent and acknowledged, and the next sequence number."""
    topic, partition = what.targets[target]
    key = (topic, partition)
    records = 0
    producer: IdempotentProducer | None = None
    with kept_client(what.client) as cluster, EncodedReader() as reader:
        try:
            for rows in batches:
                if rows.num_rows and producer is None:
                    producer = IdempotentProducer(cluster, what.producer, what.identity, what.first_sequences)
                for encoded in reader.batches(rows):
                    assert encoded.target == target, "rows of another output partition"
                    assert producer is not None
                    producer.send(topic, partition, encoded.data, encoded.records)
                    records += encoded.records
            if producer is None:
                return 0, what.first_sequences.get(key, 0)
            producer.flush()
            return records, producer.next_sequences()[key]
        finally:
            if producer is not None:
                producer.close()


def _report(
    target: int, stage_id: int, is_first: bool, records: int, next_sequence: int, code: int, error: str
) -> pa.RecordBatch:
    import pyarrow as pa

    columns: list[pa.Array[Any]] = [
        pa.array([target], pa.int32()),
        pa.array([stage_id], pa.int32()),
        pa.array([is_first], pa.bool_()),
        pa.array([records], pa.int64()),
        pa.array([next_sequence], pa.int32()),
        pa.array([code], pa.int32()),
        pa.array([error], pa.string()),
    ]
    names = ["target", "stage_id", "first_attempt", "records", "next_sequence", "error_code", "error"]
    return pa.record_batch(columns, names=names)
