"""Effects of a change on a stage's checkpoint, and values of a change as text. Pure."""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping
from typing import Any, TypeAlias

__all__ = ["Difference", "Effect", "difference", "shown", "without"]


class Effect(enum.Enum):
    """The effect of a change."""

    #: The stage continues from its checkpoint.
    SAFE = "safe"
    #: The stage has no checkpoint, and starts where its file says.
    NEW_STATE = "new state"
    #: The checkpoint does not fit the stage.
    NEEDS_RESET = "needs reset"


Difference: TypeAlias = tuple[Effect, str, str, tuple[str | int, ...]]
"""Effect, changed part, reason, and the part's path within the stage."""


def difference(old: Any, new: Any) -> str:
    """A change in words: for two lists, the added and the removed entries."""
    if isinstance(old, list) and isinstance(new, list):
        came, went = [x for x in new if x not in old], [x for x in old if x not in new]
        parts = [f"{', '.join(went)} gone"] if went else []
        parts += [f"{', '.join(came)} new"] if came else []
        return ", ".join(parts) or f"their order was {', '.join(old)} and is {', '.join(new)}"
    return f"{shown(old)} is {shown(new)} now"


def shown(value: Any) -> str:
    """A value for people."""
    if value is None:
        return "nothing"
    return value if isinstance(value, str) else str(value).lower() if isinstance(value, bool) else str(value)


def without(fields: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    """The fields except `names`."""
    return {name: value for name, value in fields.items() if name not in names}
