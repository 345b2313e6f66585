"""The archives that a session's statements know: declared in a file, as those of `headwater archive`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headwater.pipelines.archive.archive_file import TopicArchiveSpec
from headwater.pipelines.archive.declared import declared_archives
from headwater.pipelines.datasource.brokers import Brokers
from headwater.pipelines.definition import Loaded
from headwater.pipelines.sql.relations import Known, PresentFrames, TopicFrames, archive_tables
from headwater.pipelines.unified.unified_frames import UnifiedFrames

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["SessionArchives"]


@dataclass(frozen=True, slots=True)
class SessionArchives:
    """Some archives, or none; `loaded` declares their topics."""

    specs: Sequence[TopicArchiveSpec] = ()
    loaded: Loaded | None = None

    @classmethod
    def of(cls, file: str, variables: Mapping[str, str]) -> SessionArchives:
        """The archives of a file. Raises PipelineError and ArchiveError."""
        specs, loaded = declared_archives(file, variables)
        loaded.require_secrets()
        return cls(specs, loaded)

    def known(self, known: Known) -> Known:
        """What is known of a session's relations, with the archives' tables."""
        return dataclasses.replace(
            known, archives=archive_tables({each.topic: each.table for each in self.specs}, known.tables)
        )

    def frames(self, spark: SparkSession, brokers: Brokers, *, is_kept: bool = False) -> TopicFrames:
        """The frames of the session's topics; those that `is_kept` become views (see `UnifiedFrames`)."""
        if self.loaded is None:
            return PresentFrames(spark, brokers, is_kept=is_kept)
        specs = {each.topic: each for each in self.specs}
        return UnifiedFrames(spark, brokers, specs, self.loaded, is_kept=is_kept).of_statement()
