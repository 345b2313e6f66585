"""What the service's cluster and options are to `foreign_views`."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Mapping
from typing import TYPE_CHECKING, Final

from headwater.cli.sql.known_relations import Cluster
from headwater.cli.sql_service.served_archives import ServedArchives, ServedState
from headwater.pipelines.archive.archive_file import TopicArchiveSpec
from headwater.pipelines.archive.table_modes import mode_of_new_table
from headwater.pipelines.loads.offsets.log_state import log_state
from headwater.pipelines.seam.marks import UPSERT
from headwater.pipelines.spark import jvm
from headwater.pipelines.sql.lake_tables import LAKE, lake_table
from headwater.pipelines.sql.relations import Relations
from headwater.pipelines.sql.shared_views import LOG
from headwater.pipelines.sql.topic_names import TopicNames
from headwater.pipelines.unified.newest_offsets import newest_offsets

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["ServedTopics"]

TABLES_EVERY_S: Final = 10.0  # each table that is not there yet costs an analysis


class ServedTopics:
    """See `ForeignTopics`."""

    def __init__(
        self,
        spark: SparkSession,
        cluster: Cluster,
        archives: ServedArchives,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._spark = spark
        self._cluster = cluster
        self._archives = archives
        self._partitions: dict[str, int] = {}
        self._state = archives.now
        self._specs, self._relations = self._of_state(self._state)
        self._modes: dict[str, str] = {}
        self._clock = clock
        self._tried_at = float("-inf")

    def _of_state(self, state: ServedState) -> tuple[dict[str, TopicArchiveSpec], Relations]:
        # By its own listings: others would wait for each other, and there is one for each look.
        names = TopicNames(lambda: tuple(self._partitions))
        where = self._cluster.where
        frames = state.archives.frames(self._spark, where, is_kept=True)
        specs = {each.topic: each for each in state.archives.specs}
        return specs, Relations(self._spark, where, names, state.known, frames)

    def partitions(self) -> Mapping[str, int]:
        """See `ForeignTopics`. A look begins here: it knows the archives of this moment."""
        newest = self._archives.now
        if newest.version != self._state.version:
            self._specs, self._relations = self._of_state(newest)
            self._state = newest
            self._modes.clear()
        self._partitions = self._cluster.admin.partition_counts()
        return self._partitions

    def archived(self, topic: str) -> tuple[Hashable, Hashable]:
        """See `ForeignTopics`. The version of one table says nothing of another: its place is part of the state."""
        spec = self._specs.get(topic)
        if spec is None:
            return None, None
        found = newest_offsets(self._spark, spec.table)
        state = (self._state.version, spec.table, -1 if found is None else found.version)
        if (self._new_mode(spec) if found is None else found.mode) != UPSERT:
            return state, None
        return state, tuple(sorted(log_state(self._cluster.where, topic).end.items()))

    def _new_mode(self, spec: TopicArchiveSpec) -> str:
        """The mode of a table that is not there yet, asked once: an archive whose table was never made asks no more."""
        if spec.topic not in self._modes:
            self._modes[spec.topic] = mode_of_new_table(spec, self._cluster.where)
        return self._modes[spec.topic]

    def rows(self, topic: str) -> DataFrame:
        """See `ForeignTopics`."""
        return self._frame((topic,))

    def log(self, topic: str) -> DataFrame:
        """See `ForeignTopics`."""
        return self._frame((LOG, topic))

    def _frame(self, name: tuple[str, ...]) -> DataFrame:
        found = self._relations.frame(name)
        if found is None:
            raise LookupError(f"there is no topic {name[-1]} any more")
        return found

    def make_tables(self) -> None:
        """See `ForeignTopics`."""
        now = self._clock()
        if now - self._tried_at < TABLES_EVERY_S:
            return
        self._tried_at = now
        for name, path in self._state.known.lake.items():
            is_there = jvm.table_location(self._spark, LAKE, name) is not None
            if not is_there and self._relations.frame((LAKE, name)) is not None:
                lake_table(self._spark, name, jvm.qualified_path(self._spark, path))
