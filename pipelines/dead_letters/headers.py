"""Names of the headers by which a dead letter says what happened. Pure."""

from __future__ import annotations

from typing import Final

PREFIX: Final = "headwater."
ERROR: Final = PREFIX + "error"
PIPELINE: Final = PREFIX + "pipeline"
STAGE: Final = PREFIX + "stage"
EXPECTATION: Final = PREFIX + "expectation"
TOPIC: Final = PREFIX + "topic"
PARTITION: Final = PREFIX + "partition"
OFFSET: Final = PREFIX + "offset"
FILE: Final = PREFIX + "file"
# How often a record was written again by `headwater dead-letters replay`: it stays with the record.
REPLAYED: Final = PREFIX + "replayed"
