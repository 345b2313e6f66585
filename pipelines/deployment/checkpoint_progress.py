"""How far a checkpoint is: its micro-batches, and the offsets of its sources. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["CheckpointProgress", "TopicOffsets", "topics_of"]

TopicOffsets = Mapping[str, Mapping[int, int]]
"""The next offset of each partition, by topic."""


@dataclass(frozen=True, slots=True)
class CheckpointProgress:
    """A checkpoint's progress: the last completed micro-batch, and the planned micro-batch with its end offsets.

    `offsets` are the sources' offsets after the last completed batch, in Spark's form.
    """

    planned: int | None = None
    done: int | None = None
    done_at: float | None = None
    offsets: tuple[Any, ...] = ()
    planned_offsets: tuple[Any, ...] = ()
    watermark_ms: int = 0
    conf: Mapping[str, str] = field(default_factory=dict)

    def topics(self) -> dict[str, dict[int, int]]:
        """The offsets of topics."""
        return topics_of(self.offsets)

    def planned_topics(self) -> frozenset[str]:
        """The topics of any batch, planned or done."""
        return frozenset(topics_of(self.planned_offsets)) | frozenset(topics_of(self.offsets))


def topics_of(offsets: tuple[Any, ...]) -> dict[str, dict[int, int]]:
    """The offsets of topics in Spark's offset log; for a topic that is read twice, the lower offset.

    >>> topics_of(({"flights": {"0": 5, "1": 7}}, {"reservoirId": "x"}, None, 17))
    {'flights': {0: 5, 1: 7}}
    """
    found: dict[str, dict[int, int]] = {}
    for source in offsets:
        if not isinstance(source, dict) or not all(isinstance(parts, dict) for parts in source.values()):
            continue
        for topic, partitions in source.items():
            known = found.setdefault(topic, {})
            for partition, offset in partitions.items():
                known[int(partition)] = min(int(offset), known.get(int(partition), int(offset)))
    return found
