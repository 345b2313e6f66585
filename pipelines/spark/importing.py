"""Imports PySpark and the libraries that its calls need, before threads could import them side by side."""

import threading
from typing import Final

__all__ = ["import_pyspark"]

_IMPORTING: Final = threading.Lock()


def import_pyspark() -> None:
    """Import PySpark, NumPy, pandas and PyArrow: call it before threads start that may need one of them.

    The first call that any thread makes through py4j imports all of them. Where two threads import modules that import
    each other, Python hands out a half of one; of two threads that call this, the second one waits.
    """
    with _IMPORTING:
        import pyspark.sql
        import pyspark.testing.utils  # noqa: F401 - the converters of py4j's arguments take `have_numpy` from it
