"""What an archive's table says of itself: its properties, and the `txn` actions of its commits by appId. Pure.

The actions are part of the table's state: OPTIMIZE, VACUUM, the clean-up of the log and other tools' commits keep them.

  headwater.archive/<topic id>/<partition>              the next offset: all before it is in the table, or in a gap
  headwater.archive/<topic id>/<partition>/gap/<first>  the offset after a gap, which began at `first`: records lost by
                                                        retention, or those before the offset at which the archive began
"""

from __future__ import annotations

from typing import Final

__all__ = [
    "APPEND",
    "ID_PROPERTY",
    "MODE_PROPERTY",
    "PREFIX",
    "TOPIC_PROPERTY",
    "TRANSACTION_RETENTION",
    "UPSERT",
    "end_mark",
    "gap_mark",
    "refusal_of_others",
]

TOPIC_PROPERTY: Final = "headwater.archive.topic"
ID_PROPERTY: Final = "headwater.archive.topic.id"
#: How records become rows: a row each, or the last one of each key.
MODE_PROPERTY: Final = "headwater.archive.mode"
APPEND: Final = "append"
UPSERT: Final = "upsert"
#: With this property Delta drops `txn` actions after a time, those of archives and of loads.
TRANSACTION_RETENTION: Final = "delta.setTransactionRetentionDuration"
PREFIX: Final = "headwater.archive/"


def end_mark(topic_id: str, partition: int) -> str:
    """The appId whose version is a partition's next offset."""
    return f"{PREFIX}{topic_id}/{partition}"


def gap_mark(topic_id: str, partition: int, first: int) -> str:
    """The appId whose version is the offset after a gap."""
    return f"{end_mark(topic_id, partition)}/gap/{first}"


def refusal_of_others(table: str, topic: str | None) -> str:
    """What is said to another writer of an archive's table, whose rows the archive would take for records.

    >>> refusal_of_others("/lake/flights", "flights")
    'the table /lake/flights is the archive of topic flights, and only the archive adds rows to it'
    """
    return f"the table {table} is the archive of topic {topic or 'unknown'}, and only the archive adds rows to it"
