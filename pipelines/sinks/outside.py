"""The sinks of a stage that are no topics: each writes a micro-batch once, whatever becomes of the others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headwater.pipelines.definition import Loaded, Stage
from headwater.pipelines.sinks.kinds import kind_of_sink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class OutsideSinks:
    """Writes the micro-batches of one stage to everything that is no topic. The user's functions are loaded once."""

    def __init__(self, loaded: Loaded, stage: Stage) -> None:
        """Raises PipelineFailed if a function cannot be loaded, which analysis has tried before."""
        writers = [kind_of_sink(sink).writer(loaded, stage, sink) for sink in stage.to]
        self._writers = [writer for writer in writers if writer is not None]

    def write(self, rows: DataFrame, app_id: str, batch_id: int) -> None:
        """Write one micro-batch to each sink in the file's order. `app_id` names the checkpoint whose batch it is.

        Raises PipelineFailed, or what Spark, the file system or the database says.
        """
        for write in self._writers:
            write(rows, app_id, batch_id)
