"""What a Delta table says of its loads: versions by appId, the `txn` actions of the commits that added them. Pure.

They are part of the table's state: OPTIMIZE, VACUUM, the clean-up of the log and other tools' commits keep them.

  headwater.load/<topic id>                          the number of the last load. Every load reads and raises it, so
                                                     that of two concurrent ones Delta refuses the second
  headwater.load/<topic id>/<partition>              the chain of loads: the next offset
  headwater.load/<topic id>/<partition>/from         where the chain began
  headwater.load/<topic id>/<partition>/<from>-<to>  a load outside the chain: Delta ignores a lower version of an appId
                                                     without a word, so that an older range needs an appId of its own
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from headwater.pipelines.loads.errors import LoadError
from headwater.pipelines.loads.offsets.chain import chain_after
from headwater.pipelines.loads.offsets.planning import TargetState
from headwater.pipelines.loads.offsets.ranges import Range, Ranges, joined

__all__ = ["PREFIX", "TableLoads", "marks_of"]

PREFIX: Final = "headwater.load/"
_CHAIN: Final = re.compile(r"(\d+)(/from)?")
_RANGE: Final = re.compile(r"(\d+)/(\d+)-(\d+)")


@dataclass(frozen=True, slots=True)
class TableLoads:
    """The loads of a table: their number, and what they cover."""

    sequence: int
    loaded: TargetState

    @classmethod
    def of(cls, marks: Mapping[str, int], topic_id: str) -> TableLoads:
        """The loads of a topic in a table's marks. Raises LoadError if another topic's are there."""
        sequence = 0
        starts: dict[int, int] = {}
        ends: dict[int, int] = {}
        found: list[dict[int, tuple[Range, ...]]] = []
        for app_id, version in marks.items():
            topic, _, rest = app_id.removeprefix(PREFIX).partition("/")
            if topic != topic_id:
                raise LoadError(f"the table has loads of another topic, or of a topic made anew (id {topic})")
            if not rest:
                sequence = version
            elif chain := _CHAIN.fullmatch(rest):
                (starts if chain[2] else ends)[int(chain[1])] = version
            elif ranged := _RANGE.fullmatch(rest):
                found.append({int(ranged[1]): ((int(ranged[2]), int(ranged[3])),)})
        chain_ranges = {partition: ((starts.get(partition, 0), end),) for partition, end in ends.items()}
        return cls(sequence, TargetState(joined(chain_ranges, *found), ends))


def marks_of(topic_id: str, sequence: int, before: TargetState, covered: Ranges) -> dict[str, int]:
    """The marks of a load.

    >>> marks_of("t", 4, TargetState({0: ((0, 5),)}, {0: 5}), {0: ((5, 8),), 1: ((0, 4),)})
    ... # doctest: +NORMALIZE_WHITESPACE
    {'headwater.load/t': 4, 'headwater.load/t/0': 8, 'headwater.load/t/1/from': 0, 'headwater.load/t/1': 4}
    >>> marks_of("t", 5, TargetState({0: ((3, 8),)}, {0: 8}), {0: ((0, 2),)})
    {'headwater.load/t': 5, 'headwater.load/t/0/0-2': 1}
    """
    own = f"{PREFIX}{topic_id}"
    marks = {own: sequence}
    ends = chain_after(before, covered)
    for partition, parts in sorted(covered.items()):
        if partition not in before.chain_ends:
            marks[f"{own}/{partition}/from"] = parts[0][0]
        if ends[partition] != before.chain_ends.get(partition):
            marks[f"{own}/{partition}"] = ends[partition]
        for start, end in parts:
            if end > ends[partition] or start < before.chain_ends.get(partition, start):
                marks[f"{own}/{partition}/{start}-{end}"] = 1
    return marks
