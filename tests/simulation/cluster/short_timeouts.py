"""Time limits of transactions that are constants of Kafka, and longer than the faults of a run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from headwater.logtier.cluster import remote_transactions
from headwater.logtier.transaction import coordinator, markers

#: Shorter than a replica may lag and than a broker is frozen: writes are undecided now and then, and markers repeated
#: whose first request is still on its way.
WRITE_MS, RESPONSE_MS = 2_000, 500
_CONSTANTS = (
    (coordinator, "WRITE_TIMEOUT_MS", WRITE_MS),
    (remote_transactions, "WRITE_TIMEOUT_MS", WRITE_MS),
    (markers, "TIMEOUT_MS", WRITE_MS),
    (remote_transactions, "TIMEOUT_MS", WRITE_MS),
    (remote_transactions, "RESPONSE_MS", RESPONSE_MS),
)


@contextmanager
def short_timeouts() -> Iterator[None]:
    """Give up waiting for writes of transactions earlier than in truth."""
    before = [getattr(module, name) for module, name, _ in _CONSTANTS]
    for module, name, value in _CONSTANTS:
        setattr(module, name, value)
    try:
        yield
    finally:
        for (module, name, _), value in zip(_CONSTANTS, before, strict=True):
            setattr(module, name, value)
