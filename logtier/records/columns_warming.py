"""Compiles the kernels of both directions before their first use."""

from __future__ import annotations

from headwater.logtier.records.columns import warm_decoder
from headwater.logtier.records.columns_encode import warm_encoder


def warm_numba_cache() -> None:
    """Compile every kernel, or load it from numba's cache on disk.

    Called once in the driver, so that the tasks find a filled cache instead of all compiling at once.
    """
    warm_decoder()
    warm_encoder()
