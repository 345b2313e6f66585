"""How records become rows of an archive's table that is not there yet."""

from __future__ import annotations

from headwater.pipelines.archive.archive_file import TopicArchiveSpec
from headwater.pipelines.archive.errors import ArchiveError, ArchiveFailed
from headwater.pipelines.datasource.brokers import Brokers
from headwater.pipelines.loads.errors import LoadError, LoadFailed
from headwater.pipelines.loads.offsets.log_state import is_compacted
from headwater.pipelines.seam.marks import APPEND, UPSERT

__all__ = ["mode_of_new_table"]


def mode_of_new_table(spec: TopicArchiveSpec, brokers: Brokers) -> str:
    """The mode of a new table: what is declared, else by the topic's cleanup.policy.

    Raises ArchiveError if that may not be known, ArchiveFailed if no broker answers: a table keeps its mode for life.
    """
    if spec.mode is not None:
        return spec.mode
    try:
        return UPSERT if is_compacted(brokers, spec.topic) else APPEND
    except LoadError as error:
        raise ArchiveError(f"{error}, or give `mode`") from None
    except LoadFailed as error:
        raise ArchiveFailed(str(error)) from None
