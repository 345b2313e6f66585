"""Checks the counts and lengths of a message before kio reads it, because kio trusts them.

kio's reader allocates memory for as many elements as an array claims, which ends the process for 2^32 elements; and it
accepts null for every array. Therefore the message is walked first by kio's schema, without creating objects: this
finds counts that the rest of the frame cannot hold, and nulls in arrays that are not nullable.
"""

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from types import NoneType
from typing import Any, Final, TypeAlias, cast, get_args

from headwater.logtier.protocol.schema_types import FIXED_BYTES, inner_type
from headwater.logtier.protocol.wire import read_unsigned_varint

_SHORT: Final = struct.Struct(">h")
_INT: Final = struct.Struct(">i")

ELEMENTS_MAX: Final = 100_000
"""Maximum number of elements in all arrays of a request answered in slices: more than a broker has partitions. Each
element costs about ten microseconds and a kilobyte."""

WHOLE_ELEMENTS_MAX: Final = 20_000
"""Maximum for a request answered at once, while other clients wait: a few tenths of a second. A fetch has at most the
partitions led by its broker, and a producer's request of 1 MiB has fewer batches."""

ANSWERED_IN_SLICES: Final = frozenset(
    {
        "alter_client_quotas",
        "alter_configs",
        "consumer_group_describe",
        "create_acls",
        "create_partitions",
        "create_topics",
        "delete_acls",
        "delete_groups",
        "delete_topics",
        "describe_configs",
        "describe_groups",
        "describe_producers",
        "describe_transactions",
        "elect_leaders",
        "find_coordinator",
        "incremental_alter_configs",
        "list_offsets",
        "metadata",
        "offset_commit",
        "offset_fetch",
        "offset_for_leader_epoch",
        "txn_offset_commit",
    }
)
"""APIs whose requests are answered in slices (`headwater.logtier.handlers.long_requests`)."""


class _Budget:
    """The remaining number of elements of a request."""

    __slots__ = ("_elements_max", "_left")

    def __init__(self, elements_max: int) -> None:
        self._elements_max = self._left = elements_max

    def take(self, count: int) -> None:
        self._left -= count
        if self._left < 0:
            raise ValueError(f"it has more than {self._elements_max} elements; split it into several requests")


def elements_max(api_name: str) -> int:
    """Return the maximum number of elements in all arrays of a request.

    >>> elements_max("metadata"), elements_max("write_txn_markers")
    (100000, 20000)
    """
    return ELEMENTS_MAX if api_name in ANSWERED_IN_SLICES else WHOLE_ELEMENTS_MAX


#: Maps the start of a value to its end.
_Walk: TypeAlias = Callable[[bytes, int, "_Budget"], int]
#: A part of an entity: a number of bytes to skip, or a function that checks it.
_Step: TypeAlias = int | _Walk


def check_counts(entity: Any, frame: bytes, position: int, elements: int = ELEMENTS_MAX) -> None:
    """Walk the message of class `entity` at `position`, which may have at most `elements` elements.

    Raises:
        ValueError, IndexError, struct.error: The frame does not hold what the message claims.
    """
    end = _walk(entity)(frame, position, _Budget(elements))
    if end > len(frame):
        raise ValueError(f"it claims {end - position} bytes, the frame has {len(frame) - position}")


@cache
def _walk(entity: Any) -> _Walk:
    step = _entity(entity)
    return _skip(step) if isinstance(step, int) else step


def _skip(size: int) -> _Walk:
    return lambda _frame, position, _budget: position + size


@cache
def _entity(entity: Any) -> _Step:
    flexible = bool(entity.__flexible__)
    steps: list[_Step] = []
    tagged: dict[int, _Walk] = {}
    for field in fields(entity):
        tag = field.metadata.get("tag")
        step = _field(field, flexible, is_tagged=tag is not None)
        if tag is not None:
            tagged[tag] = _skip(step) if isinstance(step, int) else step
        elif isinstance(step, int) and steps and isinstance(steps[-1], int):
            steps[-1] += step
        else:
            steps.append(step)
    if flexible:
        return _flexible_entity(steps, tagged)
    if not steps:
        return 0
    return steps[0] if len(steps) == 1 else _legacy_entity(steps)


def _field(field: Any, flexible: bool, *, is_tagged: bool) -> _Step:
    kind, is_array = inner_type(field.type)
    step: _Step
    if is_dataclass(kind):
        step = _entity(cast("Any", kind))
        if not is_array and not is_tagged and NoneType in get_args(field.type):
            step = _nullable(_skip(step) if isinstance(step, int) else step)
    else:
        step = _primitive(field.metadata["kafka_type"], flexible)
    if is_array:
        name = None if NoneType in get_args(field.type) else field.name
        return _compact_array(step, name) if flexible else _legacy_array(step, name)
    return step


def _primitive(kafka_type: str, flexible: bool) -> _Step:
    if kafka_type in FIXED_BYTES:
        return FIXED_BYTES[kafka_type]
    if flexible:
        return _compact_bytes
    return _legacy_string if kafka_type == "string" else _legacy_bytes


def _legacy_entity(steps: Sequence[_Step]) -> _Walk:
    def walk(frame: bytes, position: int, budget: _Budget) -> int:
        for step in steps:
            position = position + step if isinstance(step, int) else step(frame, position, budget)
        return position

    return walk


def _flexible_entity(steps: Sequence[_Step], tagged: Mapping[int, _Walk]) -> _Walk:
    def walk(frame: bytes, position: int, budget: _Budget) -> int:
        for step in steps:
            position = position + step if isinstance(step, int) else step(frame, position, budget)
        return _tags(tagged, frame, position, budget) if frame[position] else position + 1

    return walk


def _tags(tagged: Mapping[int, _Walk], frame: bytes, position: int, budget: _Budget) -> int:
    count, position = read_unsigned_varint(frame, position)
    for _ in range(count):
        tag, position = read_unsigned_varint(frame, position)
        size, position = read_unsigned_varint(frame, position)
        end = position + size
        if end > len(frame):
            raise ValueError(f"a tagged field claims {size} bytes, {len(frame) - position} are left")
        if tag in tagged and tagged[tag](frame, position, budget) != end:
            raise ValueError(f"a tagged field of {size} bytes has another length than it says")
        position = end
    return position


def _compact_array(element: _Step, name_unless_nullable: str | None) -> _Walk:
    def walk(frame: bytes, position: int, budget: _Budget) -> int:
        count = frame[position]
        if count < 0x80:
            position += 1
        else:
            count, position = read_unsigned_varint(frame, position)
        if count == 0 and name_unless_nullable:
            raise ValueError(f"{name_unless_nullable} is null")
        return _elements(element, count - 1, frame, position, budget)

    return walk


def _legacy_array(element: _Step, name_unless_nullable: str | None) -> _Walk:
    def walk(frame: bytes, position: int, budget: _Budget) -> int:
        (count,) = _INT.unpack_from(frame, position)
        if count < -1:
            raise ValueError(f"an array claims {count} elements")
        if count < 0 and name_unless_nullable:
            raise ValueError(f"{name_unless_nullable} is null")
        return _elements(element, count, frame, position + 4, budget)

    return walk


def _elements(element: _Step, count: int, frame: bytes, position: int, budget: _Budget) -> int:
    if count > len(frame) - position:  # every element takes at least a byte
        raise ValueError(f"an array claims {count} elements in {len(frame) - position} bytes")
    if count > 0:
        budget.take(count)
    if isinstance(element, int):
        return position + element * max(count, 0)
    for _ in range(count):
        position = element(frame, position, budget)
    return position


def _nullable(entity: _Walk) -> _Walk:
    """A structure preceded by a byte that is negative for null (KIP-893)."""

    def walk(frame: bytes, position: int, budget: _Budget) -> int:
        return position + 1 if frame[position] >= 0x80 else entity(frame, position + 1, budget)

    return walk


def _compact_bytes(frame: bytes, position: int, _budget: _Budget) -> int:
    size = frame[position]
    if size < 0x80:
        return position + (size or 1)
    size, position = read_unsigned_varint(frame, position)
    return position + max(0, size - 1)


def _legacy_string(frame: bytes, position: int, _budget: _Budget) -> int:
    return _counted(_SHORT.unpack_from(frame, position)[0], position + 2)


def _legacy_bytes(frame: bytes, position: int, _budget: _Budget) -> int:
    return _counted(_INT.unpack_from(frame, position)[0], position + 4)


def _counted(size: int, position: int) -> int:
    if size < -1:
        raise ValueError(f"a field claims {size} bytes")
    return position + max(0, size)
