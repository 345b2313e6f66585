"""What an archive's rounds know of earlier ones: which of them have left files, and whether tasks can write any. Pure.

A job that fails leaves what its tasks have written, and tasks that are being ended may go on for a moment: the files of
a failed round are looked for twice, at once and before the next round.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

__all__ = ["EarlierRounds", "file_prefix", "refusal", "written_by"]

#: How long tasks are not asked to write where they could not: the job of a round fails, and is done anew by Spark.
REFUSED_S: Final = 3600.0
#: Of failed rounds whose files could not be deleted yet; those of older ones are left to VACUUM.
FAILED_MAX: Final = 100
_SWEEPS: Final = 2
_REFUSED: Final = re.compile(r"\bfile_systems\.file_system\.\w+Error: (.+)")


@dataclass(slots=True)
class EarlierRounds:
    """One for each archive, used by one round at a time.

    Attributes:
        clock: Seconds that only grow.
    """

    clock: Callable[[], float]
    _failed: dict[str, int] = field(default_factory=dict)
    _refused_s: float | None = None

    @property
    def failed(self) -> tuple[str, ...]:
        """The names of rounds whose files are to be deleted: no commit has them, or will."""
        return tuple(self._failed)

    def has_failed(self, name: str) -> None:
        """A round has ended, and none of its files was, or may have been, committed."""
        self._failed[name] = 0
        while len(self._failed) > FAILED_MAX:
            del self._failed[next(iter(self._failed))]

    def swept(self) -> None:
        """The files of the failed rounds were deleted, as far as they were there."""
        self._failed = {name: sweeps + 1 for name, sweeps in self._failed.items() if sweeps + 1 < _SWEEPS}

    @property
    def tasks_write(self) -> bool:
        """Whether tasks are to write the files: they could, or were not asked for a while."""
        return self._refused_s is None or self.clock() - self._refused_s >= REFUSED_S

    def refused(self) -> bool:
        """Tasks cannot write where Spark can. Returns whether that is news."""
        is_news = self._refused_s is None
        self._refused_s = self.clock()
        return is_news

    def wrote(self) -> None:
        """Tasks have written."""
        self._refused_s = None


def file_prefix(round_name: str) -> str:
    """How the names of a round's files in the table begin."""
    return f"part-{round_name}-"


def written_by(rounds: Iterable[str], names: Iterable[str]) -> list[str]:
    """Those of a folder's names that are files of these rounds.

    >>> written_by(["a1"], ["part-a1-0.parquet", "part-a10-0.parquet", "part-b2-0.parquet", "_delta_log"])
    ['part-a1-0.parquet']
    """
    prefixes = tuple(map(file_prefix, rounds))
    return [name for name in names if name.startswith(prefixes)]


def refusal(error: BaseException) -> str:
    """Why the module of file systems has failed in a job's task, by Spark's exception; '' if it has not.

    >>> refusal(ValueError("...\\nheadwater.pipelines.file_systems.file_system.FileSystemError: hdfs://a is closed\\n"))
    'hdfs://a is closed'
    >>> refusal(ValueError("headwater.pipelines.datasource.errors.SourceError: no broker answers"))
    ''
    """
    found = _REFUSED.search(str(error))
    return found[1].strip() if found else ""
