"""A stage's sinks other than topics: each writes a micro-batch once, independent of the other sinks."""

from __future__ import annotations

from collections.abc import Sequence

from headwater.pipelines.definition import Loaded, Stage
from headwater.pipelines.sinks.kinds import kind_of_sink
from headwater.pipelines.transforms.received_rows import ReceivedRows


class OutsideSinks:
    """Writes the micro-batches of one stage to its sinks other than topics. Loads the user's functions once."""

    def __init__(self, loaded: Loaded, stage: Stage) -> None:
        """Raises PipelineFailed if a function cannot be loaded, which the analysis has already tried."""
        self._writers = [kind_of_sink(sink).writer(loaded, stage, sink) for sink in stage.to]
        self._replaces = stage.mode == "complete"

    def write(self, received: Sequence[ReceivedRows], app_id: str, batch_id: int) -> None:
        """Write one micro-batch to each sink in the file's order. `app_id` names the batch's checkpoint.

        A sink that receives no rows is skipped, unless the batch replaces what the sink has. Raises PipelineFailed, or
        the errors of Spark, the file system or the database.
        """
        for write, share in zip(self._writers, received, strict=True):
            if write is not None and (share.count or self._replaces):
                write(share.rows, app_id, batch_id)
