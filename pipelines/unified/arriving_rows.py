"""The frames of a session's names as streams where archives are declared: history from the table, then the log."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import TYPE_CHECKING

from headwater.pipelines.loads.offsets.log_state import log_state
from headwater.pipelines.seam.marks import UPSERT
from headwater.pipelines.sql.streams import ArrivingFrames
from headwater.pipelines.unified.newest_offsets import newest_offsets
from headwater.pipelines.unified.unified_frames import UnifiedFrames, refusals_of
from headwater.pipelines.unified.unified_stream import check_start, from_time, unified_stream

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from headwater.pipelines.definition import TopicSource
    from headwater.pipelines.sources.known_columns import KnownColumns

__all__ = ["UnifiedArrivingFrames"]


class UnifiedArrivingFrames(ArrivingFrames):
    """See the module. Topics without an archive, and `log.NAME`, are those of `ArrivingFrames`."""

    def __init__(self, session: UnifiedFrames, source_of: Callable[[str], TopicSource], most: int | None) -> None:
        """`source_of` returns a topic's start."""
        super().__init__(session.spark, session.brokers, source_of, most)
        self._session = session

    def rows(self, topic: str, known: KnownColumns, *, pushdown: bool) -> DataFrame:
        """`NAME`. Raises UnreadableRelationError."""
        session = self._session
        spec = session.archives.get(topic)
        if spec is None:
            return super().rows(topic, known, pushdown=pushdown)
        with refusals_of(spec):
            source = self._source_of(topic)
            # The log first: what it has from then on is later than all that a start by time finds in the table.
            log = log_state(session.brokers, topic)
            table = newest_offsets(session.spark, spec.table)
            check_start(spec, table, log, source)
            # A table by key lacks what later records of a key replaced: the log alone knows where a time begins.
            has_history = table is not None and table.mode != UPSERT
            if isinstance(source.starting_offsets, dt.datetime) and has_history:
                rows = session.of_statement().rows(topic, known, pushdown=False)
                source = from_time(rows, source, log)
            own, schema = session.columns(spec)
            return unified_stream(session.spark, session.brokers, spec, table, own, schema, source, self._most)
