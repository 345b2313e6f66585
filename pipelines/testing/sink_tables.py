"""The Delta tables of a tested stage: written micro-batch by micro-batch as in a run, but to a temporary folder."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from headwater.pipelines.definition import DeltaSink, Loaded, Stage
from headwater.pipelines.sinks.kind import BatchWrite
from headwater.pipelines.sinks.kinds import kind_of_sink
from headwater.pipelines.spark.collected_rows import rows_of
from headwater.pipelines.transforms.received_rows import ReceivedRows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["ROWS_MAX", "SinkTables"]

ROWS_MAX: Final = 100_000  # of one table, or of a stage's output: a test compares rows in this process


class SinkTables:
    """The tables of some of a stage's Delta sinks, each in a folder of its own below `folder`.

    The sinks' writers get the temporary path in place of the sink's own, which stays untouched. The tables begin
    without rows and each has one writer, so the app_id need not differ between tests.
    """

    def __init__(
        self, session: SparkSession, loaded: Loaded, stage: Stage, sinks: Sequence[DeltaSink], folder: str
    ) -> None:
        self._session = session
        self._app_id = f"headwater/{loaded.pipeline.pipeline}/{stage.name}/test"
        # With its scheme, in Hadoop's form: the session's default file system may be another one.
        self._paths = {sink.delta: f"file:{os.path.abspath(folder)}/table-{n}" for n, sink in enumerate(sinks)}
        self._replaces = stage.mode == "complete"
        self._writers: dict[str, BatchWrite] = {}
        for sink in sinks:
            moved = sink.model_copy(update={"delta": self._paths[sink.delta]})
            writer = kind_of_sink(moved).writer(loaded, stage, moved)
            assert writer is not None, "only topics are written elsewhere"
            self._writers[sink.delta] = writer

    @property
    def is_empty(self) -> bool:
        """Whether no table is written."""
        return not self._writers

    def write(self, received: Sequence[ReceivedRows], batch_id: int) -> None:
        """Write one micro-batch to each table on a run's conditions: an empty result replaces a table, too.

        Raises ValueError or Spark's errors.
        """
        for share in received:
            write = self._writers.get(share.sink.delta) if isinstance(share.sink, DeltaSink) else None
            if write is not None and (share.count or self._replaces):
                write(share.rows, self._app_id, batch_id)

    def rows(self) -> dict[str, list[dict[str, Any]]]:
        """The rows of each table by the sink's path in the file. Raises ValueError if there are more than ROWS_MAX."""
        from delta.tables import DeltaTable

        found: dict[str, list[dict[str, Any]]] = {}
        for name, path in self._paths.items():
            if not DeltaTable.isDeltaTable(self._session, path):
                found[name] = []  # no micro-batch had rows
                continue
            rows = rows_of(self._session.read.format("delta").load(path).limit(ROWS_MAX + 1))
            if len(rows) > ROWS_MAX:
                raise ValueError(f"the table {name} has more than {ROWS_MAX:,} rows, and a test compares no more")
            found[name] = rows
        return found
