"""The archives that a session's statements know: as those of `headwater archive`, of a file and of topic configs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headwater.pipelines.archive.archive_file import TopicArchiveSpec
from headwater.pipelines.archive.configured import KnownArchives
from headwater.pipelines.archive.declared import declared_archives
from headwater.pipelines.archive.listing import ArchiveListing
from headwater.pipelines.datasource.brokers import Brokers
from headwater.pipelines.definition import Loaded, TopicSource
from headwater.pipelines.loads.offsets.log_state import log_state
from headwater.pipelines.sql.lake_tables import archive_tables
from headwater.pipelines.sql.relations import Known, PresentFrames, TopicFrames
from headwater.pipelines.sql.streams import ArrivingFrames
from headwater.pipelines.unified.arriving_rows import UnifiedArrivingFrames
from headwater.pipelines.unified.newest_offsets import newest_offsets
from headwater.pipelines.unified.unified_frames import UnifiedFrames, refusals_of
from headwater.pipelines.unified.unified_stream import first_offsets

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["SessionArchives"]


@dataclass(frozen=True, slots=True)
class SessionArchives:
    """Some archives, or none; `loaded` declares their topics.

    `refused` are topics whose configs enable an archive that cannot be, with the reason: their names are the topics.
    """

    specs: Sequence[TopicArchiveSpec] = ()
    loaded: Loaded | None = None
    refused: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        where: str,
        variables: Mapping[str, str],
        brokers: Brokers | None = None,
        find_registry: Callable[[], str | None] = lambda: None,
    ) -> SessionArchives:
        """The archives of a file or a root, and those that topic configs enable now; without brokers, of a file alone.

        Raises PipelineError, ArchiveError, and ArchiveFailed if no broker answers.
        """
        declared = declared_archives(where, variables)
        declared.loaded.require_secrets()
        if brokers is None:
            return cls(declared.specs, declared.loaded)
        return cls.listed(ArchiveListing(declared, brokers, find_registry).now())

    @classmethod
    def listed(cls, known: KnownArchives) -> SessionArchives:
        """The archives of a listing."""
        return cls(known.specs, known.loaded, {topic: each.reason for topic, each in known.refused.items()})

    def refusals(self, before: SessionArchives | None = None) -> list[str]:
        """A line for each topic whose archive cannot be, without those that `before` has as well."""
        known = {} if before is None else before.refused
        return [
            f"{topic} is the topic alone, its archive cannot be: {reason}"
            for topic, reason in self.refused.items()
            if known.get(topic) != reason
        ]

    def known(self, known: Known) -> Known:
        """What is known of a session's relations, with the archives' tables."""
        return dataclasses.replace(
            known, archives=archive_tables({each.topic: each.table for each in self.specs}, known.tables)
        )

    def frames(self, spark: SparkSession, brokers: Brokers, *, is_kept: bool = False) -> TopicFrames:
        """The frames of the session's topics; those that `is_kept` become views (see `UnifiedFrames`)."""
        session = self._session(spark, brokers, is_kept=is_kept)
        return PresentFrames(spark, brokers, is_kept=is_kept) if session is None else session.of_statement()

    def arriving(
        self, spark: SparkSession, brokers: Brokers, source_of: Callable[[str], TopicSource], most: int | None
    ) -> ArrivingFrames:
        """The frames of the session's topics as streams: at most `most` records in a micro-batch, from their starts."""
        session = self._session(spark, brokers)
        if session is None:
            return ArrivingFrames(spark, brokers, source_of, most)
        return UnifiedArrivingFrames(session, source_of, most)

    def first_offsets(self, spark: SparkSession, brokers: Brokers, topic: str) -> Mapping[int, int] | None:
        """The first offsets that a stream of a topic can begin at, by partition; None for one without an archive.

        Raises UnreadableRelationError.
        """
        spec = next((each for each in self.specs if each.topic == topic), None)
        if spec is None:
            return None
        with refusals_of(spec):
            log = log_state(brokers, topic)
            return first_offsets(spec, newest_offsets(spark, spec.table), log)

    def _session(self, spark: SparkSession, brokers: Brokers, *, is_kept: bool = False) -> UnifiedFrames | None:
        if self.loaded is None:
            return None
        specs = {each.topic: each for each in self.specs}
        return UnifiedFrames(spark, brokers, specs, self.loaded, is_kept=is_kept)
