"""A stage's sinks other than topics: each writes a micro-batch once, independent of the other sinks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headwater.pipelines.definition import Loaded, Stage
from headwater.pipelines.sinks.kinds import kind_of_sink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class OutsideSinks:
    """Writes the micro-batches of one stage to its sinks other than topics. Loads the user's functions once."""

    def __init__(self, loaded: Loaded, stage: Stage) -> None:
        """Raises PipelineFailed if a function cannot be loaded, which the analysis has already tried."""
        writers = [kind_of_sink(sink).writer(loaded, stage, sink) for sink in stage.to]
        self._writers = [writer for writer in writers if writer is not None]

    def write(self, rows: DataFrame, app_id: str, batch_id: int) -> None:
        """Write one micro-batch to each sink in the file's order. `app_id` names the batch's checkpoint.

        Raises PipelineFailed, or the errors of Spark, the file system or the database.
        """
        for write in self._writers:
            write(rows, app_id, batch_id)
