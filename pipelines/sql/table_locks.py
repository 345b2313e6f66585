"""The locks of the Delta tables on local disks that a statement may change, for as long as the statement runs.

On a local disk Delta keeps the commits of one JVM apart, and not those of two: a load and OPTIMIZE may write one
version. `headwater.pipelines.locks.table_lock` is what loads hold for their commits.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Final

from headwater.pipelines.file_systems.local import local_path
from headwater.pipelines.locks.table_lock import table_lock
from headwater.pipelines.sql_text import scanner

__all__ = ["CHANGES", "changed_names", "locked_tables"]

#: What a statement that begins with WITH or FROM may lead to; in a query they are at most names.
CHANGES: Final = frozenset({"INSERT", "MERGE", "UPDATE", "DELETE"})
#: First words of the statements that commit to a table.
_COMMITS: Final = CHANGES | {"ALTER", "CREATE", "OPTIMIZE", "REORG", "REPLACE", "RESTORE", "TRUNCATE", "VACUUM"}
_DELTA: Final = "delta"
_LOG_FOLDER: Final = "_delta_log"


def changed_names(text: str) -> list[scanner.Name]:
    """Return the names of a statement that commits to a table, with those it only reads; [] for other statements.

    >>> changed_names("OPTIMIZE delta.`/lake/a`"), changed_names("WITH n AS (SELECT 1) INSERT INTO lake.a TABLE n")
    ([('delta', '/lake/a')], [('lake', 'a'), ('n',)])
    >>> changed_names("WITH n AS (SELECT replace(x, 'a') FROM a) TABLE n"), changed_names("EXPLAIN VACUUM a")
    ([], [])
    """
    seen = scanner.words(text)
    first = seen[0] if seen else ""
    is_commit = first in _COMMITS or (first in ("WITH", "FROM") and bool(CHANGES & set(seen)))
    return scanner.names(text) if is_commit else []


@contextlib.contextmanager
def locked_tables(
    text: str, location: Callable[[scanner.Name], str | None], waits: Callable[[str], None] | None
) -> Iterator[None]:
    """Hold the locks of a statement's tables, in one order for all statements. Raises OSError.

    Args:
        text: The statement.
        location: Returns the folder of a name that is not `delta.PATH`; None for what is no table.
        waits: Called again and again with the table while another process holds its lock; may raise.
    """
    folders = set()
    for name in changed_names(text):
        is_path = len(name) == 2 and name[0].lower() == _DELTA
        place = local_path(name[1] if is_path else location(name) or "")
        if os.path.isabs(place) and os.path.isdir(os.path.join(place, _LOG_FOLDER)):
            folders.add(os.path.realpath(place))
    with contextlib.ExitStack() as held:
        for folder in sorted(folders):
            held.enter_context(table_lock(folder, waits))
        yield
