"""Lets Spark find `format("headwater")`: it looks for `DefaultSource` in packages whose names begin with pyspark_."""

from headwater.pipelines.datasource.source import HeadwaterDataSource as DefaultSource

__all__ = ["DefaultSource"]
