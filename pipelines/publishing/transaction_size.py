"""Whether a publish fits in one transaction, and into how many it is split. Pure.

The brokers abort a transaction after `transaction.max.timeout.ms` at the latest. How long one takes is not known before
it runs, so it is assumed to be slow: a tenth of what one core does (docs/benchmarks_spark.md).
"""

from __future__ import annotations

from typing import Final

from headwater.pipelines.publishing.errors import PublishRefused

__all__ = ["DEFAULT_TIMEOUT_MS", "PARTS_MAX", "parts_needed", "rows_limit"]

#: Kafka's default of `transaction.max.timeout.ms`, where the brokers do not tell it.
DEFAULT_TIMEOUT_MS: Final = 900_000
ROWS_PER_SECOND: Final = 20_000
BYTES_PER_SECOND: Final = 4 << 20  # of the source
#: Each transaction reads the source once.
PARTS_MAX: Final = 1_000


def rows_limit(rows: int, size: int, timeout_ms: int, given: int | None = None) -> int:
    """The rows that one transaction may have. `size` is the source's in bytes, 0 if unknown; `given` is the user's.

    >>> rows_limit(1_000, 0, 900_000), rows_limit(1_000_000, 8 << 30, 900_000), rows_limit(10, 0, 60_000, 500)
    (18000000, 439453, 500)
    """
    if given is not None:
        return given
    seconds = timeout_ms // 1000
    limit = ROWS_PER_SECOND * seconds
    if size and rows:
        limit = min(limit, rows * BYTES_PER_SECOND * seconds // size)
    return max(1, limit)


def parts_needed(rows: int, limit: int, *, is_split: bool, timeout_ms: int) -> int:
    """The number of transactions. Raises PublishRefused if one is too small.

    >>> parts_needed(10, 100, is_split=False, timeout_ms=1), parts_needed(250, 100, is_split=True, timeout_ms=1)
    (1, 3)
    """
    parts = max(1, -(-rows // limit))
    if parts > 1 and not is_split:
        raise PublishRefused(
            f"{rows:,} rows are too many for one transaction: within the brokers' transaction.max.timeout.ms of "
            f"{timeout_ms:,} ms about {limit:,} are safe; --split publishes in several, of which readers see one after "
            "the other, or --transaction-rows sets another limit"
        )
    if parts > PARTS_MAX:
        raise PublishRefused(
            f"{rows:,} rows need {parts:,} transactions of {limit:,}, and at most {PARTS_MAX:,} are made; publish "
            "parts of the source, or raise --transaction-rows"
        )
    return parts
