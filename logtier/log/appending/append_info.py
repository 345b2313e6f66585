"""What became of an append."""

from typing import NamedTuple

from headwater.logtier.log.durability import FlushRound


class AppendInfo(NamedTuple):
    """What became of an append. `log_append_time_ms` is -1 with CreateTime; a duplicate appended nothing.

    `flush`, with flush.messages, is the sync that has to end before the append is acknowledged.
    """

    first_offset: int
    last_offset: int
    log_append_time_ms: int
    log_start_offset: int
    record_count: int
    size_bytes: int
    duplicate: bool
    flush: FlushRound | None = None
