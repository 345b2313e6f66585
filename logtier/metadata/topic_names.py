"""Valid topic names (Kafka's rules), and the internal topics."""

import re
from typing import Final

INTERNAL_TOPICS: Final = frozenset({"__consumer_offsets", "__transaction_state"})
"""Topics of the brokers' state, which clients see as internal."""

MAX_NAME_LENGTH: Final = 249
"""A partition's folder is `<name>-<partition>`, and file systems take 255 bytes."""

_LEGAL: Final = re.compile(r"[a-zA-Z0-9._-]+")


def topic_name_problem(name: str) -> str | None:
    """Return why a topic name is invalid; None if it is valid.

    >>> topic_name_problem("flights_clean") is None
    True
    >>> topic_name_problem("a b")
    "Topic name 'a b' is illegal: it contains a character other than ASCII letters and digits, '.', '_' and '-'."
    """
    if not name:
        return "Topic name is illegal: it is empty."
    if name in (".", ".."):
        return "Topic name is illegal: it cannot be '.' or '..'."
    if len(name) > MAX_NAME_LENGTH:
        return f"Topic name '{name[:32]}...' is illegal: it has {len(name)} characters, {MAX_NAME_LENGTH} is the most."
    if not _LEGAL.fullmatch(name):
        return (
            f"Topic name {name!r} is illegal: it contains a character other than ASCII letters and digits, "
            "'.', '_' and '-'."
        )
    return None


def collision_key(name: str) -> str:
    """Return the key in which colliding topic names agree: metric names do not distinguish '.' and '_'.

    >>> collision_key("a.b") == collision_key("a_b")
    True
    """
    return name.replace(".", "_")
