"""The tables of `lake`: the names of pipelines' and archives' Delta tables, and how they become tables of a catalog."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

from headwater.pipelines.definition import DeltaSink, Loaded
from headwater.pipelines.spark import jvm

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["LAKE", "archive_tables", "delta_tables", "forget_lake_table", "lake_table"]

LAKE: Final = "lake"


def delta_tables(loaded: Loaded) -> dict[str, str]:
    """Paths of the pipeline's Delta tables by name: the last part of the path, with `_` for what a name cannot hold.

    Of two tables with one name, the second has the part before in its name, too.
    """
    found: dict[str, str] = {}
    for stage in loaded.pipeline.stages:
        for sink in stage.to:
            if isinstance(sink, DeltaSink):
                path = loaded.path(sink.delta)
                found[_table_name(path, {name for name, other in found.items() if other != path})] = path
    return found


def archive_tables(tables: Mapping[str, str], taken: Mapping[str, str]) -> dict[str, str]:
    """Paths of archives' tables by name: that of the topic, with `_` for what a name cannot hold.

    `taken` are other tables by name: the table of an archive whose name another one has gets the part of its path
    before in its name, too.

    >>> archive_tables({"orders": "/lake/orders", "a.b": "/lake/a.b"}, {"orders": "/other"})
    {'lake_orders': '/lake/orders', 'a_b': '/lake/a.b'}
    """
    found: dict[str, str] = {}
    for topic, path in tables.items():
        name = re.sub(r"\W", "_", topic)
        others = {each.lower() for each, other in {**taken, **found}.items() if other != path}
        found[_table_name(path, others) if name.lower() in others else name] = path
    return found


def _table_name(path: str, taken: Iterable[str]) -> str:
    """Name a table by its path.

    >>> _table_name("/lake/orders-clean/", ()), _table_name("/lake/b/orders", ["orders"])
    ('orders_clean', 'b_orders')
    """
    parts = [part for part in re.split(r"[/:]+", path) if part]
    used = {name.lower() for name in taken}
    name = ""
    for part in reversed(parts):
        name = re.sub(r"\W", "_", part) + (f"_{name}" if name else "")
        if name.lower() not in used:
            return name
    return name


def lake_table(spark: SparkSession, name: str, path: str) -> None:
    """Make a Delta table, which is there, the table `lake.NAME` of the session catalog, unless there is one."""
    spark.sql(f"CREATE SCHEMA IF NOT EXISTS {LAKE}")
    spark.sql(f"CREATE TABLE IF NOT EXISTS {LAKE}.{name} USING delta LOCATION '{_escaped(path)}'")


def forget_lake_table(spark: SparkSession, name: str, path: str) -> None:
    """Let `lake.NAME` be no table of the session catalog any more, if it is that at a path; its files stay."""
    if jvm.table_location(spark, LAKE, name) == jvm.qualified_path(spark, path):
        spark.sql(f"DROP TABLE IF EXISTS {LAKE}.{name}")


def _escaped(path: str) -> str:
    r"""Escape a path for a string in SQL.

    >>> _escaped("/a'b\\c")
    "/a\\'b\\\\c"
    """
    return path.replace("\\", "\\\\").replace("'", "\\'")
