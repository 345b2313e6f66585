"""Waiting until a live broker has compacted a partition."""

from __future__ import annotations

import contextlib
import time

from tests.conftest import BrokerProcess

WAIT_S = 60


def log_bytes(broker: BrokerProcess, topic: str) -> int:
    """The bytes of partition 0's segments. The broker may delete one while we look."""
    found = 0
    for path in (broker.data_dir / f"{topic}-0").glob("*.log"):
        with contextlib.suppress(FileNotFoundError):
            found += path.stat().st_size
    return found


def await_compacted(broker: BrokerProcess, topic: str, below_bytes: int) -> None:
    """Wait until partition 0 holds no more than that."""
    deadline = time.monotonic() + WAIT_S
    while log_bytes(broker, topic) > below_bytes:
        assert time.monotonic() < deadline, f"{log_bytes(broker, topic)} bytes stay:\n{broker.log()}"
        time.sleep(0.1)
