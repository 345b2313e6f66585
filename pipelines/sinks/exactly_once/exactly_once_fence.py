"""The fence: the last micro-batch that a stage has committed, and its checkpoint. Pure.

The fence is a record in the compacted topic `__headwater_fences`, keyed by the stage's transactional id and written in
the transaction of its batch: the fence is committed if and only if the batch is. A stage reads its fence at the start,
before any write.
"""

from __future__ import annotations

import enum
import json
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from headwater.logtier.records.batch import Buffer, decode_end_transaction_marker, decode_records, iterate_batches

__all__ = [
    "FENCES_CONFIGS",
    "FENCES_PARTITIONS",
    "FENCES_TOPIC",
    "Batch",
    "CheckpointMismatch",
    "Fence",
    "LatestValues",
    "Step",
    "TransactionOwner",
    "latest_committed",
    "latest_values",
    "next_step",
    "stage_owner",
]

FENCES_TOPIC: Final = "__headwater_fences"
FENCES_PARTITIONS: Final = 1
# One live record a stage: small segments keep the topic small, since compaction leaves out the active segment.
FENCES_CONFIGS: Final[Mapping[str, str]] = {
    "cleanup.policy": "compact",
    "segment.bytes": str(4 << 20),
    "min.cleanable.dirty.ratio": "0.1",
}
_FORMAT_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class Batch:
    """A micro-batch: its checkpoint's id, its number, and each source's end offset from Spark's offset log."""

    checkpoint: str
    number: int
    end_offsets: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class TransactionOwner:
    """Who writes: `label` and `unit` name the owner and its batches in messages.

    Of two writers with one transactional id, the later fences the earlier. `group` receives the source offsets.
    """

    transactional_id: str
    label: str
    unit: str
    group: str


def stage_owner(pipeline: str, stage: str) -> TransactionOwner:
    """The owner that a stage of a pipeline is.

    >>> stage_owner("flights", "clean").transactional_id
    'headwater.flights.clean'
    """
    return TransactionOwner(
        f"headwater.{pipeline}.{stage}", f"stage {stage}", "micro-batch", group=f"{pipeline}.{stage}"
    )


class CheckpointMismatch(Exception):  # noqa: N818 - it names a finding
    """A stage's checkpoint and its output do not match; the message names the remedy."""


class Step(enum.Enum):
    """Decision on a micro-batch."""

    WRITE = "write"
    #: The topics already have the batch: a crash occurred between their commit and the checkpoint's.
    SKIP = "skip"


@dataclass(frozen=True, slots=True)
class Fence:
    """A stage's last committed batch."""

    batch: Batch

    def encode(self) -> bytes:
        """The record's value.

        >>> Fence(Batch("c", 7, ({"flights": {"0": 12}},))).encode().decode()
        '{"version":1,"checkpoint":"c","batch":7,"offsets":[{"flights":{"0":12}}]}'
        """
        value = {
            "version": _FORMAT_VERSION,
            "checkpoint": self.batch.checkpoint,
            "batch": self.batch.number,
            "offsets": list(self.batch.end_offsets),
        }
        return json.dumps(value, separators=(",", ":")).encode()

    @staticmethod
    def decode(value: bytes) -> Fence:
        """The inverse of `encode`. Raises CheckpointMismatch for a value from a later release or another program.

        >>> Fence.decode(Fence(Batch("c", 7, ({"t": {"0": 1}}, 5))).encode()).batch
        Batch(checkpoint='c', number=7, end_offsets=({'t': {'0': 1}}, 5))
        """
        try:
            parsed = json.loads(value)
            if parsed["version"] != _FORMAT_VERSION:
                raise ValueError(f"its version is {parsed['version']!r}")
            return Fence(Batch(str(parsed["checkpoint"]), int(parsed["batch"]), tuple(parsed["offsets"])))
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointMismatch(
                f"the stage's record in {FENCES_TOPIC} cannot be read ({error}): {value[:200]!r}; if a later release "
                "of headwater wrote it, run that one"
            ) from None


def next_step(fence: Fence | None, batch: Batch) -> Step:
    """Whether to write or to skip a batch. Raises CheckpointMismatch if either would lose or duplicate records.

    >>> done = Fence(Batch("c", 7, (12,)))
    >>> next_step(done, Batch("c", 8, (15,))), next_step(done, Batch("c", 7, (12,)))
    (<Step.WRITE: 'write'>, <Step.SKIP: 'skip'>)
    >>> next_step(done, Batch("another", 0, (12,))), next_step(None, Batch("c", 3, (5,)))
    (<Step.WRITE: 'write'>, <Step.WRITE: 'write'>)
    """
    if fence is None or fence.batch.checkpoint != batch.checkpoint or batch.number > fence.batch.number:
        return Step.WRITE
    if batch == fence.batch:
        return Step.SKIP
    if batch.number == fence.batch.number:
        raise CheckpointMismatch(
            f"micro-batch {batch.number} has been written with other source offsets than the checkpoint has for it: "
            "the checkpoint is an older copy, or was changed; bring back the later one, or remove it to start anew"
        )
    raise CheckpointMismatch(
        f"the checkpoint is about to write micro-batch {batch.number}, but the stage has written up to micro-batch "
        f"{fence.batch.number} of it: it is an older copy; bring back the later one, or remove it to start anew"
    )


class LatestValues(NamedTuple):
    """The last committed value of a key, and the last of the transactions that are open."""

    committed: bytes | None
    undecided: bytes | None


def latest_committed(chunks: Iterable[Buffer], key: bytes) -> bytes | None:
    """The last committed value of a key in a topic's partition, from its record batches, including control batches.

    None without a value, or after a tombstone. The partition is read up to the high watermark: other stages' open
    transactions do not hide this stage's commits, as they would from a read_committed reader. The key's own producer
    must have no open transaction (InitProducerId ensures this), so that a marker follows each of its records;
    compaction removes a marker only together with aborted records, or later.
    """
    return latest_values(chunks, key, sys.maxsize).committed


def latest_values(chunks: Iterable[Buffer], key: bytes, stable_offset: int) -> LatestValues:
    """The same for a key whose producers may have open transactions.

    `stable_offset` is the partition's last stable offset at some time before the batches were read: what lies before it
    is decided, even where compaction has removed the marker; what lies behind it still has its marker once decided.
    """
    committed: tuple[int, bytes | None] = (-1, None)
    undecided: dict[int, tuple[int, bytes | None]] = {}  # by producer id
    for chunk in chunks:
        for header, data in iterate_batches(chunk):
            if header.is_control:
                waiting = undecided.get(header.producer_id)
                marker = decode_end_transaction_marker(data) if waiting else None
                if waiting and marker is not None:
                    del undecided[header.producer_id]
                    committed = max(committed, waiting, key=_offset) if marker.committed else committed
                continue
            for record in decode_records(data):
                if record.key != key:
                    continue
                found = (record.offset, record.value)
                if header.is_transactional:
                    undecided[header.producer_id] = found
                else:
                    committed = max(committed, found, key=_offset)
    decided = (found for found in undecided.values() if found[0] < stable_offset)
    still_open = (found for found in undecided.values() if found[0] >= stable_offset)
    return LatestValues(max((committed, *decided), key=_offset)[1], max(still_open, key=_offset, default=(-1, None))[1])


def _offset(found: tuple[int, bytes | None]) -> int:
    return found[0]
