"""Source offsets of a stage without transactions, committed for its consumer group after each micro-batch's writes.

The offsets serve only monitoring: the stage itself resumes from its checkpoint. So a failed commit never fails a batch.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping
from typing import Final

from headwater.logtier.client.cluster import ClientConfig, ClusterClient, TopicPartition
from headwater.logtier.client.errors import ClientError
from headwater.logtier.client.group_offsets import commit_group_offsets

__all__ = ["SourceOffsets"]

logger = logging.getLogger(__name__)

# A batch that needs an unavailable broker reports it.
COMMIT_MS_MAX: Final = 5_000


class SourceOffsets:
    """Commits offsets for one group. For use by one thread; call `close` at the end."""

    def __init__(self, client: ClientConfig, pipeline: str, stage: str) -> None:
        self._group = f"{pipeline}.{stage}"
        self._cluster = ClusterClient(
            dataclasses.replace(client, api_timeout_ms=COMMIT_MS_MAX, request_timeout_ms=COMMIT_MS_MAX)
        )
        self._is_told = False

    def commit(self, batch: int, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit the sources' end offsets of a written batch. Never raises for a broker's errors."""
        try:
            commit_group_offsets(self._cluster, self._group, offsets, f"batch={batch}")
            self._is_told = False
        except ClientError as error:
            self._cluster.close()
            if not self._is_told:
                logger.warning("the lag of consumer group %s is not up to date: %s", self._group, error)
            self._is_told = True

    def close(self) -> None:
        """Close the connections."""
        self._cluster.close()
