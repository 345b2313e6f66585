"""Source offsets of a stage without transactions, committed for its consumer group when a micro-batch is written.

They are for those who watch: the stage itself goes on from its checkpoint. So a commit that fails never fails a batch.
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

# A broker that is away is told by the batch that needs it.
COMMIT_MS_MAX: Final = 5_000


class SourceOffsets:
    """Commits for one group. One thread uses it; `close` it."""

    def __init__(self, client: ClientConfig, pipeline: str, stage: str) -> None:
        self._group = f"{pipeline}.{stage}"
        self._cluster = ClusterClient(
            dataclasses.replace(client, api_timeout_ms=COMMIT_MS_MAX, request_timeout_ms=COMMIT_MS_MAX)
        )
        self._is_told = False

    def commit(self, batch: int, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit where the sources end in a batch that is written. Never raises for what a broker answers."""
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
