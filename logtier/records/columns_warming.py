"""Compiles the kernels of both directions ahead of their first use."""

from __future__ import annotations

from headwater.logtier.records.columns import warm_decoder
from headwater.logtier.records.columns_encode import warm_encoder


def warm_numba_cache() -> None:
    """Compiles every kernel, or loads it from numba's cache on disk.

    Called once in the driver, so that the tasks that follow find the cache filled instead of compiling side by side.
    """
    warm_decoder()
    warm_encoder()
