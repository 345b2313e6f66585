"""A pipeline's file as types: parses YAML to a checked `Pipeline`, or reports every problem at once.

The models define the format: an unknown field is refused by name, and the editor's schema and the reference page are
generated from the models. `loading` combines the parts. Other packages import from here;
`headwater.pipelines.validation.pipeline_file.load` reads a file.
"""

from headwater.pipelines.definition.loaded import Loaded
from headwater.pipelines.definition.model import Model, fields_of, identifier, interval, interval_ms, topic_name
from headwater.pipelines.definition.pipeline import STAGES_MAX, Environment, Pipeline
from headwater.pipelines.definition.secret_text import Password, SecretMissingError, Secrets, SecretText
from headwater.pipelines.definition.sinks import DeltaSink, FilesSink, JdbcSink, Merge, PythonSink, Sink, TopicSink
from headwater.pipelines.definition.sources import (
    INPUT,
    DeltaSource,
    FilesSource,
    Input,
    JdbcSource,
    RateSource,
    Source,
    TopicSource,
    TopicWatermark,
    Watermark,
)
from headwater.pipelines.definition.stage import Expectation, Restart, Stage
from headwater.pipelines.definition.steps import (
    Deduplicate,
    DeduplicateStep,
    PythonFunction,
    PythonStep,
    SqlStep,
    Stateful,
    StatefulStep,
    Step,
    WatermarkStep,
)
from headwater.pipelines.definition.tables import (
    EVERY_BATCH,
    ONCE,
    DeltaTable,
    FilesTable,
    JdbcAddress,
    JdbcTable,
    Table,
    TopicTable,
)
from headwater.pipelines.definition.tests import PipelineTest
from headwater.pipelines.definition.topics import (
    FROM_REGISTRY,
    INFERRED,
    PARTITIONS_MAX,
    VALUE_FORMATS,
    Event,
    EventType,
    Registry,
    Topic,
)

__all__ = [
    "EVERY_BATCH", "FROM_REGISTRY", "INFERRED", "INPUT", "ONCE", "PARTITIONS_MAX", "STAGES_MAX", "VALUE_FORMATS",
    "Deduplicate", "DeduplicateStep", "DeltaSink", "DeltaSource", "DeltaTable", "Environment", "Event", "EventType",
    "Expectation", "FilesSink", "FilesSource", "FilesTable", "Input", "JdbcAddress", "JdbcSink", "JdbcSource",
    "JdbcTable", "Loaded", "Merge", "Model", "Password", "Pipeline", "PipelineTest", "PythonFunction", "PythonSink",
    "PythonStep", "RateSource", "Registry", "Restart", "SecretMissingError", "SecretText", "Secrets", "Sink", "Source",
    "SqlStep", "Stage", "Stateful", "StatefulStep", "Step", "Table", "Topic", "TopicSink", "TopicSource", "TopicTable",
    "TopicWatermark", "Watermark", "WatermarkStep", "fields_of", "identifier", "interval", "interval_ms", "topic_name",
]  # fmt: skip
