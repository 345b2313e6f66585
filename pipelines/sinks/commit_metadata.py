"""A Delta commit's metadata of its micro-batch: JSON in the commit's userMetadata. Pure.

docs/explanation/exactly_once.md describes the JSON; its offsets are those of Spark's checkpoint.
"""

from __future__ import annotations

import json
from typing import Final

from headwater.pipelines.sinks.exactly_once.exactly_once_fence import Batch

__all__ = ["USER_METADATA_CONF", "user_metadata"]

# The session setting from which Delta reads the metadata, for appends and merges.
USER_METADATA_CONF: Final = "spark.databricks.delta.commitInfo.userMetadata"
_FORMAT_VERSION: Final = 1


def user_metadata(pipeline: str, stage: str, batch: Batch) -> str:
    """The metadata of one batch as JSON.

    >>> user_metadata("f", "clean", Batch("c-1", 7, ({"flights": {"0": 12}},)))
    '{"headwater":{"version":1,"pipeline":"f","stage":"clean","checkpoint":"c-1","batch":7,"offsets":[{"flights":{"0":12}}]}}'
    """
    value = {
        "version": _FORMAT_VERSION,
        "pipeline": pipeline,
        "stage": stage,
        "checkpoint": batch.checkpoint,
        "batch": batch.number,
        "offsets": list(batch.end_offsets),
    }
    return json.dumps({"headwater": value}, separators=(",", ":"))
