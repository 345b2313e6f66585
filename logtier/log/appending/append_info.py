"""The result of an append."""

from typing import NamedTuple

from headwater.logtier.log.durability import FlushRound


class AppendInfo(NamedTuple):
    """The result of an append. `log_append_time_ms` is -1 with CreateTime; a duplicate appended nothing.

    `flush` is the sync, required by flush.messages, that must end before the append is acknowledged.
    """

    first_offset: int
    last_offset: int
    log_append_time_ms: int
    log_start_offset: int
    record_count: int
    size_bytes: int
    duplicate: bool
    flush: FlushRound | None = None
