"""The Spark session of `headwater sql`: nothing of it remains, except the catalog that `--catalog` names."""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from headwater.cli.shell.errors import EXIT_FAILED, CliError
from headwater.cli.shell.termination import raise_on_sigterm
from headwater.pipelines.spark import jvm
from headwater.pipelines.spark.session import JAVA_OPTIONS_CONF, close_session, open_session
from headwater.pipelines.sql.relations import session_conf

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["catalog_conf", "opened"]

WAREHOUSE_CONF: Final = "spark.sql.warehouse.dir"
CATALOG_FOLDER_MODE: Final = 0o700
DERBY_IS_OPEN: Final = "XSDB6"  # Derby's code for a database that another process has


def catalog_conf(catalog: str, folder: str) -> dict[str, str]:
    """The settings of the session's catalog: Hive's metastore in Derby below `catalog`, or tables below `folder`.

    >>> catalog_conf("", "/scratch")
    {'spark.sql.warehouse.dir': '/scratch/warehouse'}
    """
    if not catalog:
        return {WAREHOUSE_CONF: os.path.join(folder, "warehouse")}
    return {
        WAREHOUSE_CONF: os.path.join(catalog, "warehouse"),
        "spark.sql.catalogImplementation": "hive",
        "spark.hadoop.javax.jdo.option.ConnectionURL": f"jdbc:derby:;databaseName={catalog}/metastore_db;create=true",
        "spark.hadoop.hive.exec.scratchdir": os.path.join(folder, "scratch"),
        "spark.hadoop.hive.exec.local.scratchdir": os.path.join(folder, "scratch"),
        JAVA_OPTIONS_CONF: f"-Dderby.stream.error.file={os.path.join(folder, 'derby.log')}",
    }


@contextlib.contextmanager
def opened(master: str, catalog: str = "") -> Iterator[SparkSession]:
    """Start Spark, and end it. Raises SessionError, and CliError for a catalog that cannot be used."""
    if catalog:
        catalog = os.path.abspath(catalog)
        if any(character in catalog for character in ";'\" \n"):
            raise CliError("sql", f"--catalog {catalog!r}: the path holds a space, a quote or a semicolon")
        try:
            os.makedirs(catalog, mode=CATALOG_FOLDER_MODE, exist_ok=True)
        except OSError as error:
            raise CliError("sql", f"--catalog {catalog}: {error.strerror}") from None
    with tempfile.TemporaryDirectory(prefix="headwater-sql-") as folder:
        conf = {"spark.master": master, **session_conf(), **catalog_conf(catalog, folder)}
        spark = open_session("headwater sql", os.path.join(folder, "spark.log"), conf)
        # Spark has set a handler of its own, which cancels every job of the session.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        raise_on_sigterm()
        try:
            jvm.find_python_sources(spark)
            if catalog:
                _require_catalog(spark, catalog)
            yield spark
        finally:
            close_session()


def _require_catalog(spark: SparkSession, catalog: str) -> None:
    from pyspark.errors import PySparkException

    from headwater.pipelines.spark.spark_errors import first_line

    try:
        spark.sql("SHOW SCHEMAS").collect()
    except Exception as error:
        if DERBY_IS_OPEN in str(error) or "Another instance of Derby" in str(error):
            why = "another shell uses this catalog"
        elif isinstance(error, PySparkException):
            why = first_line(error)
        else:
            raise
        raise CliError("sql", f"--catalog {catalog}: {why}", exit_code=EXIT_FAILED) from None
