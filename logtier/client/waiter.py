"""Waits until a partition has a record at or after a given offset: a long poll at all leaders at once."""

from __future__ import annotations

import select
import time
from collections.abc import Mapping

from headwater.logtier.client.blocking import BlockingConnection
from headwater.logtier.client.cluster import ClusterClient, TopicPartition
from headwater.logtier.client.errors import ClientError
from headwater.logtier.client.fetch_codec import FetchPosition, fetch_request
from headwater.logtier.client.messages import ApiKey

__all__ = ["DataWaiter"]

# A broker returns at least one complete batch whatever the limit: this limit requests no second one.
BYTES_MAX = 1


class DataWaiter:
    """Waiting of idle readers: one parked fetch at each leader instead of repeated requests for end offsets.

    Only a hint: an error or a fetch at a stale offset ends the wait early, never late. The caller then requests the end
    offsets by ListOffsets.
    """

    def __init__(self, cluster: ClusterClient) -> None:
        self._cluster = cluster
        self._connections: dict[int, BlockingConnection] = {}

    def wait(self, end_offsets: Mapping[TopicPartition, int], wait_ms: int) -> None:
        """Returns when a partition has a record at or after its end offset, or after `wait_ms`."""
        started_s = time.monotonic()
        try:
            waiting = self._park(end_offsets, wait_ms)
            left_s = max(0.0, wait_ms / 1000 - (time.monotonic() - started_s))
            readable, _, _ = select.select(waiting, [], [], left_s)
            if len(readable) == len(waiting):
                for connection in readable:
                    connection.receive()
            else:
                self.close()  # fetches are still parked at other leaders: their responses would count as later ones
        except (ClientError, OSError, ValueError):
            self.close()
            time.sleep(max(0.0, min(wait_ms / 1000 - (time.monotonic() - started_s), 0.05)))

    def _park(self, end_offsets: Mapping[TopicPartition, int], wait_ms: int) -> list[BlockingConnection]:
        by_leader: dict[int, list[FetchPosition]] = {}
        for (topic, partition), offset in end_offsets.items():
            leader = self._cluster.leader(topic, partition)
            epoch = self._cluster.leader_epoch(topic, partition)
            by_leader.setdefault(leader, []).append(FetchPosition(topic, partition, offset, BYTES_MAX, epoch))
        waiting: list[BlockingConnection] = []
        for node_id, partitions in by_leader.items():
            connection = self._connections.get(node_id)
            if connection is None or connection.closed:
                connection = self._connections[node_id] = self._cluster.open_node_connection(node_id)
            connection.send(
                fetch_request(
                    connection.version(ApiKey.FETCH),
                    partitions,
                    wait_ms=wait_ms,
                    bytes_min=1,
                    bytes_max=BYTES_MAX,
                    isolation_level=self._cluster.config.isolation_level,
                )
            )
            waiting.append(connection)
        return waiting

    def close(self) -> None:
        """Closes the parked connections."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()
