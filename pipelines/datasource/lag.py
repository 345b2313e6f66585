"""A query's lag behind its topics, from the source's entry in Spark's progress. Pure.

Spark's Kafka source reports the lag in the progress itself, as metrics of the source; Spark 4.2 requests no metrics
from a Python source, but shows the two offsets from which the lag is computed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headwater.pipelines.datasource.offsets import Offsets, from_source_offset

__all__ = ["Lag", "source_lag"]


@dataclass(frozen=True, slots=True)
class Lag:
    """Offsets between a micro-batch's end and the partitions' ends at that time, including control records."""

    partitions: dict[tuple[str, int], int]

    @property
    def total(self) -> int:
        """The lag of all partitions together."""
        return sum(self.partitions.values())

    def metrics(self) -> dict[str, str]:
        """The metrics in the form of the Kafka source's `sources[].metrics`.

        >>> Lag({("t", 0): 4, ("t", 1): 0}).metrics()
        {'avgOffsetsBehindLatest': '2.0', 'maxOffsetsBehindLatest': '4', 'minOffsetsBehindLatest': '0'}
        """
        behind = self.partitions.values()
        if not behind:
            return {}
        return {
            "avgOffsetsBehindLatest": str(sum(behind) / len(behind)),
            "maxOffsetsBehindLatest": str(max(behind)),
            "minOffsetsBehindLatest": str(min(behind)),
        }


def source_lag(source: Mapping[str, Any]) -> Lag | None:
    """The lag in one entry of a progress's `sources`, None if the entry is incomplete.

    >>> source_lag({"endOffset": '{"t": {"0": 5}}', "latestOffset": '{"t": {"0": 9, "1": 2}}'})
    Lag(partitions={('t', 0): 4, ('t', 1): 2})
    >>> source_lag({"endOffset": None, "latestOffset": None})
    """
    end, latest = _offsets(source.get("endOffset")), _offsets(source.get("latestOffset"))
    if end is None or latest is None:
        return None
    return Lag({key: max(0, offset - end.get(key, 0)) for key, offset in sorted(latest.items())})


def _offsets(written: Any) -> Offsets | None:
    if isinstance(written, str):
        try:
            written = json.loads(written)
        except ValueError:
            return None
    return from_source_offset(written) if isinstance(written, Mapping) else None
