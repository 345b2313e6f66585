"""A stage's sinks other than topics: each writes a micro-batch once, independent of the other sinks."""

from __future__ import annotations

from collections.abc import Sequence

from headwater.pipelines.definition import Loaded, Stage
from headwater.pipelines.errors import PipelineFailed
from headwater.pipelines.sinks.kinds import kind_of_sink
from headwater.pipelines.sinks.refused_targets import target_refusal
from headwater.pipelines.transforms.received_rows import ReceivedRows


class OutsideSinks:
    """Writes the micro-batches of one stage to its sinks other than topics. Loads the user's functions once."""

    def __init__(self, loaded: Loaded, stage: Stage) -> None:
        """Raises PipelineFailed if a function cannot be loaded, which the analysis has already tried."""
        self._loaded = loaded
        self._stage = stage
        self._writers = [kind_of_sink(sink).writer(loaded, stage, sink) for sink in stage.to]
        self._replaces = stage.mode == "complete"
        # Positions of sinks. Looked at once: what a sink has begun stays the sink's.
        self._begun: set[int] = set()

    def write(self, received: Sequence[ReceivedRows], app_id: str, batch_id: int) -> None:
        """Write one micro-batch to each sink in the file's order. `app_id` names the batch's checkpoint.

        A sink that receives no rows is skipped, unless the batch replaces what the sink has. Raises PipelineFailed, or
        the errors of Spark, the file system or the database.
        """
        for position, (write, share) in enumerate(zip(self._writers, received, strict=True)):
            if write is not None and (share.count or self._replaces):
                self._begin(position, share)
                write(share.rows, app_id, batch_id)

    def _begin(self, position: int, share: ReceivedRows) -> None:
        if position in self._begun:
            return
        refusal = target_refusal(share.rows.sparkSession, self._loaded, share.sink)
        if refusal is not None:
            raise PipelineFailed(f"stage {self._stage.name}: {refusal.reason}; {refusal.hint}")
        self._begun.add(position)
