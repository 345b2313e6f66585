"""Timestamps in a pipeline's file. Pure."""

from __future__ import annotations

import datetime as dt
from typing import Annotated, Any, TypeAlias

from pydantic import PlainValidator, WithJsonSchema

from headwater.pipelines.definition.model import Shown


def moment(value: Any) -> dt.datetime:
    """Parse a timestamp in ISO 8601; without an offset it is UTC."""
    found = value
    if isinstance(value, str):
        try:
            found = dt.datetime.fromisoformat(value)
        except ValueError:
            found = None
    elif isinstance(value, dt.date) and not isinstance(value, dt.datetime):
        found = dt.datetime.combine(value, dt.time())
    if not isinstance(found, dt.datetime):
        raise ValueError(f"{value!r} is neither earliest, latest, offsets by partition, nor a moment in ISO 8601")
    return found if found.tzinfo else found.replace(tzinfo=dt.UTC)


Moment: TypeAlias = Annotated[dt.datetime, PlainValidator(moment), WithJsonSchema({"type": "string"}), Shown("moment")]
