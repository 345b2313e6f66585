"""Errors of loads."""

from __future__ import annotations

__all__ = ["LoadError", "LoadFailed"]


class LoadError(Exception):
    """A load that cannot be: what was asked for does not fit the topic or the target. Nothing was changed."""


class LoadFailed(Exception):  # noqa: N818 - as PipelineFailed
    """A load that failed while it ran. A repeated command goes on where this one ended."""
