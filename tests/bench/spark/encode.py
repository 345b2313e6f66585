"""Rows to record batches on one core: what a Spark task of a topic sink does with each row before it is sent.

Arrow rows with keys are dealt to partitions, encoded, compressed and sealed (producer fields, CRC), as in the sinks.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager

from headwater.logtier.client.producer_state import ProducerIdentity, seal_batch
from headwater.logtier.records.compression import LZ4, NONE, ZSTD
from tests.bench.report import Table, listing

KEYS = 1_000
VALUE_BYTES = 200
PARTITIONS = 6
# Rows that a sink gathers before it encodes them, about 16 MiB.
PIECE_ROWS = 65_536
CODECS = {"none": NONE, "lz4": LZ4, "zstd": ZSTD}


def measure(rows: int, rounds: int) -> tuple[list[Table], dict[str, list[float]]]:
    """Rows per second, by codec, after a round to warm up."""
    import pyarrow as pa

    from headwater.logtier.records.columns_encode import BatchEncoder, warm_encoder

    warm_encoder()
    chance = random.Random(2013)
    keys = [b"key-%d" % chance.randrange(KEYS) for _ in range(PIECE_ROWS)]
    # Half of a value is the same in all of them, as the field names of JSON are.
    values = [b"field-names-" * 8 + chance.randbytes(52).hex().encode() for _ in range(PIECE_ROWS)]
    values = [value[:VALUE_BYTES] for value in values]
    piece = pa.record_batch([pa.array(keys, pa.binary()), pa.array(values, pa.binary())], names=["key", "value"])
    figures: dict[str, list[float]] = {}
    with _one_core():
        for name, codec in CODECS.items():
            for _ in range(rounds + 1):
                encoder = BatchEncoder(PARTITIONS, codec=codec)
                done, start = 0, time.perf_counter()
                while done < rows:
                    for encoded in encoder.encode(piece, now_ms=0):
                        seal_batch(encoded.data, ProducerIdentity(1, 0), 0)
                    done += PIECE_ROWS
                figures.setdefault(f"{name}, rows/s", []).append(done / (time.perf_counter() - start))
    kept = {name: rates[1:] for name, rates in figures.items()}
    title = f"Rows to record batches on one core: {rows:,} rows of {VALUE_BYTES} bytes with keys, {rounds} rounds"
    return [listing(title, kept)], kept


@contextmanager
def _one_core() -> Iterator[None]:
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(allowed)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)
