"""Makes events of records of a watched topic. Imported by the triggerer, which has the plugins folder on its path."""

from __future__ import annotations

from typing import Any

__all__ = ["hint"]


def hint(message: Any, header: str | None = None) -> dict[str, Any] | None:
    """The record's place, or None for a record without the header that marks events.

    Neither its key nor its value: Airflow stores events for everybody who may look at assets.
    """
    if header is not None and header not in {name for name, _ in message.headers() or ()}:
        return None
    _, timestamp_ms = message.timestamp()
    return {
        "topic": message.topic(),
        "partition": message.partition(),
        "offset": message.offset(),
        "timestamp_ms": timestamp_ms,
    }
