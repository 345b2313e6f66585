"""Errors of archives."""

from __future__ import annotations

__all__ = ["ArchiveError", "ArchiveFailed"]


class ArchiveError(Exception):
    """An archive that cannot go on as it is declared: topic, table and declaration do not fit. Nothing was changed."""


class ArchiveFailed(Exception):  # noqa: N818 - as PipelineFailed
    """A round that failed: nothing of it is in the table, and the next one begins where it did."""
