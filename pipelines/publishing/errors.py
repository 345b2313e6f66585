"""Why a publish is refused, or ends."""

from __future__ import annotations

__all__ = ["PublishFailed", "PublishRefused"]


class PublishRefused(Exception):  # noqa: N818 - it names an outcome
    """A publish that cannot begin: its request, its source or the topic does not permit it. Nothing was written."""


class PublishFailed(Exception):  # noqa: N818
    """A publish that ended while it ran. Nothing of the transaction that it was in can be read."""
