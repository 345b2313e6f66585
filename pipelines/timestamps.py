"""Times that users type, as milliseconds since 1970. Pure."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

__all__ = ["timestamp_ms"]

_EPOCH = datetime.fromtimestamp(0, UTC)


def timestamp_ms(text: str) -> int | None:
    """Return the time of an ISO 8601 text, which is in UTC without an offset; None for another text.

    >>> timestamp_ms("2013-01-01T05:00:00Z"), timestamp_ms("2013-01-01T06:00:00.0019+01:00"), timestamp_ms("soon")
    (1357016400000, 1357016400001, None)
    """
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    # In integers: near the ends of the calendar `timestamp()` overflows, and it rounds.
    return (moment - _EPOCH) // timedelta(milliseconds=1)
