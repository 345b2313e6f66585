"""Whether a table's properties are those of an archive's table: one decision for rounds and for the status. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from headwater.pipelines.archive.errors import forgotten_offsets, other_mode, other_topic
from headwater.pipelines.seam.marks import (
    APPEND,
    ID_PROPERTY,
    MODE_PROPERTY,
    TOPIC_PROPERTY,
    TRANSACTION_RETENTION,
    UPSERT,
)

__all__ = ["refused_properties"]


def refused_properties(
    table: str, properties: Mapping[str, str], topic: str, topic_id: str, declared_mode: str | None
) -> str:
    """Why a table cannot be the archive of a topic, by its properties; '' if it can.

    >>> refused_properties("/lake/flights", {}, "flights", "t", None)
    'the table /lake/flights was not made by an archive: name another table'
    """
    its_id, mode = properties.get(ID_PROPERTY), properties.get(MODE_PROPERTY)
    retention = properties.get(TRANSACTION_RETENTION)
    if its_id is None:
        return f"the table {table} was not made by an archive: name another table"
    if its_id != topic_id:
        return other_topic(table, properties.get(TOPIC_PROPERTY, ""), its_id, topic, topic_id)
    if mode not in (APPEND, UPSERT):
        return f"the table {table} is an archive of the mode {mode}, which this release lacks"
    if retention is not None:
        return forgotten_offsets(table, TRANSACTION_RETENTION, retention)
    if declared_mode not in (None, mode):
        return other_mode(table, mode, str(declared_mode))
    return ""
