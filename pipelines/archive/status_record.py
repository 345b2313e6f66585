"""The record of an archive's status in the compacted topic `__headwater_status`, for other processes to read. Pure.

The key is `archive:<topic>`, the value JSON; the latest record of a key applies. Records of pipelines have other keys
(`headwater.pipelines.monitoring.status`). Only the driver that has an archive writes its status.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, Final

from headwater.pipelines.monitoring.status import ERROR_CHARACTERS_MAX

__all__ = ["ArchiverStatus", "decode_archiver_status"]

STATES: Final = ("running", "failing", "stopped")
_FORMAT_VERSION: Final = 1
_KIND: Final = "archive"


@dataclass(frozen=True, slots=True)
class ArchiverStatus:
    """What a driver says of one archive; times in ms since 1970, counts since the driver began.

    Attributes:
        state: One of STATES; `since_ms` is the time of the state change.
        time_ms: When the status was read.
        host, process: The driver.
        table_version: The table's; -1 before a round has looked at it.
        behind: Offsets that the table lacks; None until a round of this driver has told.
        held_bytes: About how many bytes of the log the archive's group has not passed; 0 while that is not known.
        pending_ms: When the oldest offsets that it lacks were seen; None if it lacks none, as far as is known. Until a
            round has told, it may lack any of the log's.
        committed_ms: The driver's last commit; None before the first.
        errors: Rows of them whose values cannot be decoded.
        error: Why the last round has failed; '' if it has not.
    """

    topic: str
    table: str
    state: str
    since_ms: int
    time_ms: int
    started_ms: int
    host: str
    process: int
    table_version: int = -1
    behind: int | None = None
    pending_ms: int | None = None
    committed_ms: int | None = None
    rows: int = 0
    errors: int = 0
    files: int = 0
    commits: int = 0
    failures: int = 0
    error: str = ""
    held_bytes: int = 0

    @property
    def key(self) -> bytes:
        """The record's key.

        >>> ArchiverStatus("flights", "/lake/flights", "running", 0, 0, 0, "worker-3", 4711).key
        b'archive:flights'
        """
        return f"{_KIND}:{self.topic}".encode()

    def encode(self) -> bytes:
        """The record's value."""
        value = {"version": _FORMAT_VERSION, "kind": _KIND} | asdict(self)
        value["error"] = self.error[:ERROR_CHARACTERS_MAX]
        return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode(errors="replace")


def decode_archiver_status(value: bytes) -> ArchiverStatus:
    """The inverse of `encode`; ignores fields added by later releases. Raises ValueError for anything else."""
    found = json.loads(value)
    if not isinstance(found, dict) or (found.get("version"), found.get("kind")) != (_FORMAT_VERSION, _KIND):
        raise ValueError(f"not an archive's status of version {_FORMAT_VERSION}")
    fields: dict[str, Any] = {name: found[name] for name in ArchiverStatus.__dataclass_fields__ if name in found}
    try:
        status = ArchiverStatus(**fields)
    except TypeError as error:
        raise ValueError(f"not an archive's status: {error}") from None
    if status.state not in STATES:
        raise ValueError(f"not a state of an archive: {status.state!r}")
    return status
