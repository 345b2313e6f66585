"""Compiles all loops used by tasks, or loads them from numba's cache on disk."""

from __future__ import annotations

__all__ = ["warm_cache"]


def warm_cache() -> None:
    """Fill numba's cache.

    Called once in the driver, so that later tasks use the cache instead of compiling concurrently.
    """
    from headwater.logtier.records.columns_warming import warm_numba_cache
    from headwater.pipelines.datasource.json_fields import warm_parser

    warm_numba_cache()
    warm_parser()
