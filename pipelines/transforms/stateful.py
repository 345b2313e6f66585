"""User-defined state: a StatefulProcessor with Spark's transformWithState."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from headwater.pipelines.transforms import python

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from headwater.pipelines.definition import Stateful

# Only this state store of Spark supports all features of a processor: lists, maps, timers, time to live.
STATE_STORE_CONF: Final = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    )
}
_TIMES: Final = {"none": "None", "processing_time": "ProcessingTime", "event_time": "EventTime"}


def load(path: str, step: Stateful) -> Any:
    """An instance of the user's class. Raises python.UserCodeError."""
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor

    found = python.load(path, step.processor)
    if not (isinstance(found, type) and issubclass(found, StatefulProcessor)):
        raise python.UserCodeError(
            f"{path}: {step.processor} is not a class of pyspark.sql.streaming.StatefulProcessor"
        )
    return python.call(path, found, **step.options)


def apply(rows: DataFrame, step: Stateful, processor: Any, mode: str) -> DataFrame:
    """The processor's output rows; `mode` is the stage's."""
    grouped = rows.groupBy(*(f"`{name}`" for name in step.by))
    run = grouped.transformWithStateInPandas if step.form == "pandas" else grouped.transformWithState
    return run(processor, step.output, mode.capitalize(), _TIMES[step.time])
