"""The record of a stage's status in the compacted topic `__headwater_status`, for other processes to read.

The key is `<pipeline>/<stage>`, the value JSON; the latest record of a key applies. A stage without a final status and
without heartbeats (see `HEARTBEAT_MS`) has died with its process. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

__all__ = [
    "ERROR_CHARACTERS_MAX",
    "HEARTBEAT_MS",
    "INTERVAL_MS",
    "STATES",
    "STATUS_CONFIGS",
    "STATUS_PARTITIONS",
    "STATUS_TOPIC",
    "Lag",
    "StageStatus",
    "decode",
    "is_due",
    "record_key",
]

STATUS_TOPIC: Final = "__headwater_status"
STATUS_PARTITIONS: Final = 1
# One live record a stage: small segments keep the topic small, since compaction leaves out the active segment.
STATUS_CONFIGS: Final[Mapping[str, str]] = {
    "cleanup.policy": "compact",
    "segment.bytes": str(4 << 20),
    "min.cleanable.dirty.ratio": "0.1",
}
# Minimum interval between a stage's records, except for a state change; and maximum interval without any change.
INTERVAL_MS: Final = 1_000
HEARTBEAT_MS: Final = 10_000
ERROR_CHARACTERS_MAX: Final = 2_000
STATES: Final = ("starting", "running", "idle", "restarting", "failed", "stopped")
_FORMAT_VERSION: Final = 1
_OVER: Final = ("failed", "stopped")


@dataclass(frozen=True, slots=True)
class Lag:
    """A stage's lag behind a topic: unread records, and the age of the oldest (None: unknown)."""

    records: int
    seconds: float | None


@dataclass(frozen=True, slots=True)
class StageStatus:
    """A stage's status; times in ms since 1970, counts since the start of the run.

    Attributes:
        state: One of STATES; `since_ms` is the time of the state change.
        time_ms: When the record was written.
        batch: Number of the last micro-batch; None before the first.
        lag: By topic.
        watermark: ISO 8601 in UTC, '' without a watermark; `stall` is the reason why it does not advance, '' while it
            does.
        error: The stage's last failure.
        mode: continuous or once.
        versions: Versions of headwater, spark and python.
    """

    pipeline: str
    stage: str
    state: str
    since_ms: int
    time_ms: int
    started_ms: int
    host: str
    process: int
    mode: str = "continuous"
    batch: int | None = None
    batch_rows: int = 0
    batch_ms: int = 0
    rows_per_second: float = 0.0
    rows: int = 0
    written: int = 0
    dead_letters: int = 0
    undecodable: int = 0
    late_rows: int = 0
    late_records: int = 0
    unmet: dict[str, int] = field(default_factory=dict)
    state_rows: int = 0
    state_bytes: int = 0
    watermark: str = ""
    stall: str = ""
    lag: dict[str, Lag] = field(default_factory=dict)
    restarts: int = 0
    error: str = ""
    versions: dict[str, str] = field(default_factory=dict)

    @property
    def key(self) -> bytes:
        """The record's key."""
        return record_key(self.pipeline, self.stage)

    @property
    def is_over(self) -> bool:
        """Whether the stage has reported its end."""
        return self.state in _OVER

    def is_lost(self, now_ms: int) -> bool:
        """Whether the stage's process died without a final status: several heartbeats are missing."""
        return not self.is_over and now_ms - self.time_ms > 3 * HEARTBEAT_MS

    def encode(self) -> bytes:
        """Return the record's value."""
        value = {"version": _FORMAT_VERSION} | asdict(self)
        value["error"] = self.error[:ERROR_CHARACTERS_MAX]
        return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode(errors="replace")


def record_key(pipeline: str, stage: str) -> bytes:
    """Return the record's key.

    >>> record_key("flights", "clean")
    b'flights/clean'
    """
    return f"{pipeline}/{stage}".encode()


def decode(value: bytes) -> StageStatus:
    """The inverse of `encode`; ignores fields added by later releases. Raises ValueError for anything else."""
    found = json.loads(value)
    if not isinstance(found, dict) or found.get("version") != _FORMAT_VERSION:
        raise ValueError(f"not a stage's status of version {_FORMAT_VERSION}")
    fields: dict[str, Any] = {
        name: found[name] for name in StageStatus.__dataclass_fields__ if name in found and name != "lag"
    }
    try:
        lag = {str(topic): Lag(int(each["records"]), each["seconds"]) for topic, each in found.get("lag", {}).items()}
        status = StageStatus(**fields, lag=lag)
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"not a stage's status: {error}") from None
    if status.state not in STATES:
        raise ValueError(f"not a state of a stage: {status.state!r}")
    return status


def is_due(now_ms: int, written_ms: int | None, *, state_changed: bool, something_changed: bool) -> bool:
    """Return whether a stage's status is due for writing.

    >>> is_due(5_000, 4_500, state_changed=False, something_changed=True)
    False
    >>> is_due(5_000, 4_500, state_changed=True, something_changed=True)
    True
    >>> is_due(15_000, 4_500, state_changed=False, something_changed=False)
    True
    """
    if written_ms is None or state_changed:
        return True
    return now_ms - written_ms >= (INTERVAL_MS if something_changed else HEARTBEAT_MS)
