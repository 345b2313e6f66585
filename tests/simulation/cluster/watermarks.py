"""Observes the high watermarks of all brokers: which partitions the present callback has touched."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from headwater.logtier.replication.partition import Partition

_SLOT = "high_watermark"


@contextmanager
def observed_watermarks(changed: Callable[[Partition[Any]], None]) -> Iterator[None]:
    """Call `changed` after each assignment of a high watermark: not every one of them goes with a write to a log."""
    slot = Partition.__dict__[_SLOT]

    def set_and_tell(partition: Partition[Any], value: int) -> None:
        slot.__set__(partition, value)
        changed(partition)

    setattr(Partition, _SLOT, property(slot.__get__, set_and_tell))
    try:
        yield
    finally:
        setattr(Partition, _SLOT, slot)
