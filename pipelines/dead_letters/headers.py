"""Names of the headers that describe a dead letter's failure. Pure."""

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
# Number of times `headwater dead-letters replay` has written the record; it stays with the record.
REPLAYED: Final = PREFIX + "replayed"
