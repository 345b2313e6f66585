from __future__ import annotations

import pytest

from headwater.logtier.records.columns_warming import warm_numba_cache


@pytest.fixture(scope="session", autouse=True)
def compiled_kernels() -> None:
    """Compiles once, so that no single test pays for it."""
    warm_numba_cache()
