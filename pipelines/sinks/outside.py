"""The sinks of a stage that are no topics: each writes a micro-batch once, whatever becomes of the others."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from headwater.pipelines.definition import DeltaSink, FilesSink, JdbcSink, Loaded, PythonSink, Stage, TopicSink
from headwater.pipelines.errors import PipelineFailed
from headwater.pipelines.sinks import delta, delta_merge, files, jdbc
from headwater.pipelines.sinks import python as python_sink
from headwater.pipelines.transforms import python

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class OutsideSinks:
    """Writes the micro-batches of one stage to everything that is no topic. The user's functions are loaded once."""

    def __init__(self, loaded: Loaded, stage: Stage) -> None:
        """Raises PipelineFailed if a function cannot be loaded, which analysis has tried before."""
        self._loaded = loaded
        self._stage = stage
        self._functions: dict[int, Callable[..., Any]] = {}
        for position, sink in enumerate(stage.to):
            if isinstance(sink, PythonSink):
                try:
                    self._functions[position] = python.load(loaded.path(sink.python.file), sink.python.function)
                except python.UserCodeError as error:
                    raise PipelineFailed(f"stage {stage.name}: {error}") from None

    def write(self, rows: DataFrame, app_id: str, batch_id: int) -> None:
        """Write one micro-batch to each sink in the file's order. `app_id` names the checkpoint whose batch it is.

        Raises PipelineFailed, or what Spark, the file system or the database says.
        """
        for position, sink in enumerate(self._stage.to):
            if isinstance(sink, TopicSink):
                continue
            if isinstance(sink, DeltaSink):
                self._delta(rows, sink, app_id, batch_id)
            elif isinstance(sink, FilesSink):
                files.write(rows, sink, self._loaded.path(sink.files), app_id, batch_id)
            elif isinstance(sink, JdbcSink):
                self._jdbc(rows, sink, app_id, batch_id)
            else:
                self._python(rows, sink, self._functions[position], batch_id)

    def _delta(self, rows: DataFrame, sink: DeltaSink, app_id: str, batch_id: int) -> None:
        path = self._loaded.path(sink.delta)
        if sink.merge is not None:
            delta_merge.write(rows, sink, path, app_id, batch_id)
        else:
            delta.write(rows, sink, path, app_id, batch_id, replaces=self._stage.mode == "complete")

    def _jdbc(self, rows: DataFrame, sink: JdbcSink, app_id: str, batch_id: int) -> None:
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException

        from headwater.pipelines.spark.spark_errors import first_line

        try:
            jdbc.write(rows, sink, app_id, batch_id)
        except (PySparkException, Py4JError, ValueError) as error:
            # A driver's message may hold the address with its password.
            said = self._loaded.redacted(first_line(error))
            raise PipelineFailed(f"stage {self._stage.name}: the table {sink.table}: {said}") from None

    def _python(self, rows: DataFrame, sink: PythonSink, function: Callable[..., Any], batch_id: int) -> None:
        try:
            python_sink.write(rows, self._loaded.path(sink.python.file), function, batch_id)
        except python.UserCodeError as error:
            raise PipelineFailed(f"stage {self._stage.name}: {error}") from error
