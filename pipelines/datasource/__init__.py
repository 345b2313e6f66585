"""The Spark data source `format("headwater")`: topics as DataFrames, batch and streaming, in and out.

Options and columns are those of Spark's own `format("kafka")`. Importing this package is cheap; what needs Arrow or
numba is imported where rows are read or written.
"""

import sys
from typing import Final

__all__ = [
    "COMMAND_CONFIG_OPTION",
    "HEADERS_SEEN_OPTION",
    "JSON_FIELDS_OPTION",
    "PUSHDOWN_OPTION",
    "SESSION_CONF",
    "TASK_RECORDS",
    "TASK_RECORDS_OPTION",
    "session_environment",
]

# The reader that takes filters is chosen by this option: Spark refuses it where the setting below is off, and a data
# source cannot see the settings.
PUSHDOWN_OPTION: Final = "headwater.pushdown"

# Ranges with fewer offsets share a task. By default every partition has a task of its own, as in `format("kafka")`; a
# task costs tens of milliseconds whatever it reads, so micro-batches of a few records are faster together.
TASK_RECORDS_OPTION: Final = "headwater.minRecordsPerTask"
# What streams gain most with: reading as many takes about as long as starting a task.
TASK_RECORDS: Final = 40_000

# Whether a column tells if any of a task's records has headers: dead letters take theirs along, and where none has any
# the micro-batch need not be read a second time for them.
HEADERS_SEEN_OPTION: Final = "headwater.headersSeen"

# Fields of JSON values that records are to have as columns, as far as the task that reads them is sure of what they
# say: `headwater.pipelines.datasource.json_fields` has the text and the columns, `headwater.pipelines.formats.json`
# the rest.
JSON_FIELDS_OPTION: Final = "headwater.jsonFields"

# A file of Kafka client properties that says how to connect. It is read where the query is planned: its secrets stand
# in no option, hence in no plan and no log of Spark's.
COMMAND_CONFIG_OPTION: Final = "headwater.commandConfig"

# What a session sets to get the most of this source.
SESSION_CONF: Final[dict[str, str]] = {
    # Without it Spark never offers a filter to a Python source; off by default.
    "spark.sql.python.filterPushdown.enabled": "true",
    # Options stand in plans and on Spark's pages: not those that are secret.
    "spark.sql.redaction.options.regex": "(?i)url|jaas|password|secret|ssl.keystore.key",
    # A worker that stays has numba, Arrow and the compiled kernels loaded already (the default; relied upon).
    "spark.python.worker.reuse": "true",
}


def session_environment() -> dict[str, str]:
    """Environment variables to set before a local session starts.

    Spark starts its Python workers and planners with `python3` from PATH unless told otherwise; there this package may
    not be installed, and the format would not be found.
    """
    return {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
