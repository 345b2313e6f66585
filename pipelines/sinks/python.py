"""Passes rows to a user's function, with the micro-batch's number, by which it can recognize a repeated batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headwater.pipelines.errors import PipelineFailed
from headwater.pipelines.sinks.stored_rows import with_lineage
from headwater.pipelines.transforms import python

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from headwater.pipelines.definition import Loaded, PythonSink, Stage
    from headwater.pipelines.sinks.kind import BatchWrite, Encodings

__all__ = ["PythonKind"]


class PythonKind:
    """See `SinkKind`."""

    def check(self, loaded: Loaded, sink: PythonSink, _rows: DataFrame, _encodings: Encodings) -> None:
        """Check that the function exists."""
        python.load(loaded.path(sink.python.file), sink.python.function)

    def shown(self, _sink: PythonSink, rows: DataFrame, _encodings: Encodings) -> DataFrame:
        """The unchanged rows: the function's effect on them is unknown."""
        return rows

    def stored(self, sink: PythonSink, rows: DataFrame) -> None:
        """None: no stage reads a function's output."""

    def writer(self, loaded: Loaded, stage: Stage, sink: PythonSink) -> BatchWrite:
        """A function that calls the user's function, loaded once. An error names the line in the user's file."""
        path = loaded.path(sink.python.file)
        try:
            function = python.load(path, sink.python.function)
        except python.UserCodeError as error:
            raise PipelineFailed(f"stage {stage.name}: {error}") from None

        def write(rows: DataFrame, _app_id: str, batch_id: int) -> None:
            try:
                python.call(path, function, with_lineage(rows), batch_id)
            except python.UserCodeError as error:
                raise PipelineFailed(f"stage {stage.name}: {error}") from error

        return write
