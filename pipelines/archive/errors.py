"""Errors of archives."""

from __future__ import annotations

__all__ = ["ArchiveError", "ArchiveFailed", "other_topic"]


class ArchiveError(Exception):
    """An archive that cannot go on as it is declared: topic, table and declaration do not fit. Nothing was changed."""


class ArchiveFailed(Exception):  # noqa: N818 - as PipelineFailed
    """A round that failed: nothing of it is in the table, and the next one begins where it did."""


def other_topic(table: str, its_topic: str, its_id: str, topic: str, topic_id: str) -> str:
    """What is said of a table that is the archive of another topic, or of one of the same name that was deleted."""
    return (
        f"the table {table} is the archive of topic {its_topic} with the id {its_id}, and {topic} has the id "
        f"{topic_id}: a topic that was made anew needs another table"
    )
