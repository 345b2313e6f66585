"""Imports PySpark and the libraries that its calls need, before threads could import them side by side."""

__all__ = ["import_pyspark"]


def import_pyspark() -> None:
    """Import PySpark, NumPy, pandas and PyArrow: call it where one thread runs, before others may need one of them.

    The first call that any thread makes through py4j imports all of them. Where two threads import modules that import
    each other, Python hands out a half of one.
    """
    import pyspark.sql
    import pyspark.testing.utils  # noqa: F401 - the converters of py4j's arguments take `have_numpy` from it
