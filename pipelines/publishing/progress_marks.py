"""How far a publish is, as the cluster remembers it, and what follows. Pure.

Two records of the topic of fences are written in each transaction of a publish. One has the publish's own name: its
last committed transaction, of how many. The other has the path and the topic: which publish was the last from there. So
a publish continues after its last transaction, and one that was interrupted is noticed when its source has changed.
"""

from __future__ import annotations

import enum
import json
from dataclasses import dataclass
from typing import Final

from headwater.pipelines.publishing.errors import PublishRefused
from headwater.pipelines.sinks.exactly_once.exactly_once_fence import Batch

__all__ = ["LastPublish", "PublishProgress", "PublishState", "Unfinished", "batch_of", "state_of", "unfinished"]

_FORMAT_VERSION: Final = 1


class PublishState(enum.Enum):
    """What is to be done."""

    BEGIN = "begin"
    CONTINUE = "continue"
    FINISHED = "finished"


@dataclass(frozen=True, slots=True)
class PublishProgress:
    """The state of a publish: `done` of `parts` transactions are committed; `rows` and `division` of the whole.

    `division` is a hash of which rows each transaction has (`record_frames.Division`).
    """

    state: PublishState
    done: int
    parts: int
    rows: int
    division: str = ""


def batch_of(name: str, part: int, parts: int, rows: int, division: str = "") -> Batch:
    """The fence of one transaction of a publish; parts count from 0."""
    return Batch(name, part, ({"parts": parts, "rows": rows, "division": division},))


def state_of(last: Batch | None, name: str, given_id: str | None) -> PublishProgress:
    """What is to be done, by the last committed transaction. Raises PublishRefused if an id names another publish.

    >>> state_of(None, "a", None).state, state_of(batch_of("a", 1, 2, 9), "a", None).state
    (<PublishState.BEGIN: 'begin'>, <PublishState.FINISHED: 'finished'>)
    """
    if last is None:
        return PublishProgress(PublishState.BEGIN, 0, 0, 0)
    if last.checkpoint != name:
        assert given_id is not None, "the transactional id is the name"
        raise PublishRefused(
            f"the id '{given_id}' is that of another publish: its source, topic, key, headers or format was another; "
            "give another --id"
        )
    try:
        [told] = last.end_offsets
        parts, rows, division = int(told["parts"]), int(told["rows"]), str(told["division"])
    except (KeyError, TypeError, ValueError):
        raise PublishRefused(
            "the record of this publish in the topic of fences cannot be read; if a later release of headwater wrote "
            "it, run that one"
        ) from None
    done = last.number + 1
    state = PublishState.FINISHED if done >= parts else PublishState.CONTINUE
    return PublishProgress(state, done, parts, rows, division)


@dataclass(frozen=True, slots=True)
class LastPublish:
    """The last publish from a path into a topic."""

    name: str
    transactional_id: str
    part: int
    parts: int

    def encode(self) -> bytes:
        """The record's value.

        >>> LastPublish.decode(LastPublish("a", "headwater.publish.a", 0, 2).encode())
        LastPublish(name='a', transactional_id='headwater.publish.a', part=0, parts=2)
        """
        value = {
            "version": _FORMAT_VERSION,
            "name": self.name,
            "transactional_id": self.transactional_id,
            "part": self.part,
            "parts": self.parts,
        }
        return json.dumps(value, separators=(",", ":")).encode()

    @staticmethod
    def decode(value: bytes | None) -> LastPublish | None:
        """The inverse of `encode`; None for no value, or one of a later release, which is not understood."""
        try:
            parsed = json.loads(value) if value is not None else {}
            if parsed.get("version") != _FORMAT_VERSION:
                return None
            return LastPublish(
                str(parsed["name"]), str(parsed["transactional_id"]), int(parsed["part"]), int(parsed["parts"])
            )
        except (AttributeError, KeyError, TypeError, ValueError):
            return None


@dataclass(frozen=True, slots=True)
class Unfinished:
    """A publish of several transactions that has not written all of them. `is_open`: it may be writing one now."""

    publish: LastPublish
    done: int
    is_open: bool


def unfinished(
    committed: LastPublish | None, undecided: LastPublish | None, transactional_id: str
) -> Unfinished | None:
    """The unfinished publish from a path, by its last committed mark and that of an open transaction.

    None for the publish with this transactional id, which knows how far it is. A publish of one transaction is never
    unfinished: it is there as a whole, or not at all.

    >>> half = LastPublish("a", "headwater.publish.a", 0, 2)
    >>> unfinished(half, None, "headwater.publish.b").done, unfinished(half, None, "headwater.publish.a")
    (1, None)
    """
    if undecided is not None and undecided.parts > 1 and undecided.transactional_id != transactional_id:
        return Unfinished(undecided, undecided.part, is_open=True)
    if committed is None or committed.transactional_id == transactional_id or committed.part + 1 >= committed.parts:
        return None
    return Unfinished(committed, committed.part + 1, is_open=False)
