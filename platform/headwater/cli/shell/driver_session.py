"""The Spark session of a command that runs what a file declares."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from headwater.cli.shell.options import key_values, settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headwater.pipelines.definition import Loaded

__all__ = ["driver_conf", "driver_session"]


def driver_conf(loaded: Loaded, confs: Sequence[str]) -> dict[str, str]:
    """Spark's settings: of this process, of the file, and of `--conf`; the later ones take precedence."""
    own = {name: text.reveal() for name, text in loaded.pipeline.spark.items()}
    return {"spark.master": settings().spark_master, **own, **key_values(tuple(confs), "--conf")}


@contextmanager
def driver_session(
    name: str, conf: Mapping[str, str], opened: Callable[[str, str, Mapping[str, str]], SparkSession] | None = None
) -> Iterator[Callable[[], SparkSession]]:
    """A function that starts Spark; its log and its warehouse are in a folder that ends with the session.

    `opened` starts Spark in place of `open_session`.
    """
    from headwater.pipelines.spark.session import close_session, open_session

    with tempfile.TemporaryDirectory(prefix=f"{name.replace(' ', '-')}-") as folder:
        warehouse = {"spark.sql.warehouse.dir": os.path.join(folder, "warehouse")}
        try:
            open_it = open_session if opened is None else opened
            yield lambda: open_it(name, os.path.join(folder, "spark.log"), {**warehouse, **conf})
        finally:
            close_session()
