"""The Spark data source `format("headwater")`: reads and writes topics as batch and streaming DataFrames.

Options and columns are those of Spark's own `format("kafka")`. Importing this package is cheap: modules that need Arrow
or numba are imported where rows are read or written.
"""

import sys
from typing import Final

__all__ = [
    "COMMAND_CONFIG_OPTION",
    "DISORDER_CONF",
    "DISORDER_OPTION",
    "HEADERS_SEEN_OPTION",
    "JSON_FIELDS_OPTION",
    "PUSHDOWN_OPTION",
    "SESSION_CONF",
    "TASK_RECORDS",
    "TASK_RECORDS_OPTION",
    "TOPIC_ID_OPTION",
    "session_environment",
]

# This option selects the reader with filter pushdown: Spark refuses that reader if the setting below is off, and a data
# source cannot read the settings.
PUSHDOWN_OPTION: Final = "headwater.pushdown"

# Ranges with fewer offsets share a task. By default every partition has its own task, as in `format("kafka")`; a task
# costs tens of milliseconds even for few records, so shared tasks make small micro-batches faster.
TASK_RECORDS_OPTION: Final = "headwater.minRecordsPerTask"
# The best value for streams: reading this many records takes about as long as starting a task.
TASK_RECORDS: Final = 40_000

# Whether a column shows if any record of a task has headers: dead letters need their headers, and without any the
# micro-batch need not be read again for them.
HEADERS_SEEN_OPTION: Final = "headwater.headersSeen"

# Fields of JSON values that become columns, for values that the reading task can parse exactly:
# `headwater.pipelines.datasource.json_fields` defines the text and the columns, `headwater.pipelines.formats.json`
# handles the other values.
JSON_FIELDS_OPTION: Final = "headwater.jsonFields"

# A file of Kafka client properties for the connection. The query's planner reads it: its secrets are in no option, and
# so in no plan or log of Spark.
COMMAND_CONFIG_OPTION: Final = "headwater.commandConfig"

# The id that the topic of a batch read has: a topic that was made anew has other records at the same offsets.
TOPIC_ID_OPTION: Final = "headwater.topicId"

# How far timestamps of a partition fall back, in milliseconds: bounds a read for rows up to a time (see `time_bounds`).
DISORDER_OPTION: Final = "timestampDisorderMs"
# The same for the topics that Headwater itself opens in a session: Spark passes no settings to a Python data source.
DISORDER_CONF: Final = "spark.headwater.timestampDisorderMs"

# Settings of a session for the best performance of this source.
SESSION_CONF: Final[dict[str, str]] = {
    # Without this setting, Spark never offers filters to a Python source; off by default.
    "spark.sql.python.filterPushdown.enabled": "true",
    # Plans and Spark's UI show options: secret values must be redacted.
    "spark.sql.redaction.options.regex": "(?i)url|jaas|password|secret|ssl.keystore.key",
    # A reused worker has already loaded numba, Arrow and the compiled kernels (the default; required).
    "spark.python.worker.reuse": "true",
}


def session_environment() -> dict[str, str]:
    """Environment variables to set before a local session starts.

    By default, Spark starts its Python workers and planners with `python3` from PATH, where this package may not be
    installed, so that the format would be missing.
    """
    return {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
