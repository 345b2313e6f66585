"""Settings of a Spark session for one job, for options that Spark reads only from the session."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["settings_for_a_job"]


@contextmanager
def settings_for_a_job(spark: SparkSession, conf: Mapping[str, str]) -> Iterator[None]:
    """Apply settings to jobs planned in the block, and restore them afterwards. A stage's session has one thread."""
    before = {name: spark.conf.get(name, None) for name in conf}
    for name, value in conf.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, value_before in before.items():
            if value_before is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, value_before)
