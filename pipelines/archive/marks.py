"""The offsets of an archive as the marks of its table, and back (`seam.marks`). Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from headwater.pipelines.archive.errors import ArchiveError
from headwater.pipelines.loads.offsets.ranges import Range, Ranges, joined
from headwater.pipelines.seam.marks import PREFIX, end_mark, gap_mark

__all__ = ["ArchiveState", "marks_of"]

_MARK: Final = re.compile(r"(\d+)(?:/gap/(\d+))?")


@dataclass(frozen=True, slots=True)
class ArchiveState:
    """How far a table is.

    Attributes:
        ends: The next offset of each partition that the archive has begun.
        gaps: Offsets before them that are not in the table.
    """

    ends: Mapping[int, int] = field(default_factory=dict)
    gaps: Ranges = field(default_factory=dict)

    @classmethod
    def of(cls, marks: Mapping[str, int], topic_id: str) -> ArchiveState:
        """The state by a table's marks. Raises ArchiveError if they are those of another topic.

        >>> ArchiveState.of({"headwater.archive/t/0": 9, "headwater.archive/t/0/gap/0": 4}, "t")
        ArchiveState(ends={0: 9}, gaps={0: ((0, 4),)})
        """
        ends: dict[int, int] = {}
        gaps: list[dict[int, tuple[Range, ...]]] = []
        for app_id, version in marks.items():
            topic, _, rest = app_id.removeprefix(PREFIX).partition("/")
            found = _MARK.fullmatch(rest)
            if topic != topic_id or found is None:
                raise ArchiveError(
                    f"the table has the offsets of another topic (id {topic}; this one's is {topic_id}): a topic that "
                    "was made anew needs another table"
                )
            if found[2] is None:
                ends[int(found[1])] = version
            else:
                gaps.append({int(found[1]): ((int(found[2]), version),)})
        return cls(ends, joined(*gaps))


def marks_of(topic_id: str, ends: Mapping[int, int], gaps: Ranges) -> dict[str, int]:
    """The marks of a round: the next offsets of its partitions, and its gaps.

    >>> marks_of("t", {0: 9}, {0: ((0, 4),)})
    {'headwater.archive/t/0': 9, 'headwater.archive/t/0/gap/0': 4}
    """
    marks = {end_mark(topic_id, partition): end for partition, end in sorted(ends.items())}
    return marks | {
        gap_mark(topic_id, partition, first): after
        for partition, parts in sorted(gaps.items())
        for first, after in parts
    }
