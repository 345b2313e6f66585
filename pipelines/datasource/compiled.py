"""The compiled loops of tasks, all of them: made, or loaded from numba's cache on disk."""

from __future__ import annotations

__all__ = ["warm_cache"]


def warm_cache() -> None:
    """Fills the cache.

    Called once in the driver, so that the tasks that follow find the cache filled instead of compiling side by side.
    """
    from headwater.logtier.records.columns_warming import warm_numba_cache
    from headwater.pipelines.datasource.json_fields import warm_parser

    warm_numba_cache()
    warm_parser()
