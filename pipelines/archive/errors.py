"""Errors of archives."""

from __future__ import annotations

__all__ = ["ArchiveError", "ArchiveFailed", "forgotten_offsets", "naming_table", "other_mode", "other_topic"]


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


def naming_table(reason: str, table: str) -> str:
    """A reason that names the table.

    >>> (
    ...     naming_table("the disk is full", "/lake/flights"),
    ...     naming_table("/lake/flights/a: no such file", "/lake/flights"),
    ... )
    ('the disk is full (the table /lake/flights)', '/lake/flights/a: no such file')
    """
    return reason if table in reason else f"{reason} (the table {table})"


def other_mode(table: str, its_mode: str, mode: str) -> str:
    """What is said of a table whose mode is not the declared one."""
    return (
        f"the table {table} has the mode {its_mode}, which it keeps, and not {mode}: name another table, or leave out "
        "`mode`"
    )


def forgotten_offsets(table: str, name: str, value: str) -> str:
    """What is said of a table with a property that drops the versions of applications after a time."""
    return f"the table {table} has the property {name} = {value}: it would forget its offsets; unset it"
