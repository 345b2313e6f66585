"""What determines a publish's records, of what was asked and declared."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headwater.pipelines.publishing.contents import Records

if TYPE_CHECKING:
    from headwater.pipelines.formats.topic_encoding import Encoding
    from headwater.pipelines.publishing.request import PublishRequest

__all__ = ["records_of"]


def records_of(request: PublishRequest, columns: str, encoding: Encoding, topic_id: str) -> Records:
    """What determines the records' bytes; `columns` are those of the source, in Spark's JSON."""
    wanted = encoding.wanted
    formats: dict[str, Any] = {
        "value": encoding.value_format,
        "key": encoding.key_format,
        "options": dict(wanted.options),
        "columns": None if wanted.schema is None else wanted.schema.json(),
        "required": list(wanted.required),
    }
    for name, part in (("value_schema", encoding.value_part), ("key_schema", encoding.key_part)):
        formats[name] = None if part is None else [part.writer.schema.text, part.writer.message, part.subject]
    reading = {"format": request.input_format, "columns": columns, "options": dict(request.input_options)}
    headers = dict(request.headers)
    return Records(topic_id, request.key, request.value, request.timestamp, headers, formats, reading, request.order_by)
