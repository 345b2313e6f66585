"""The Prometheus endpoint of a broker: `GET /metrics` on a separate port.

The HTTP server of the client library runs on a thread; values are collected on the event loop, in slices.
"""

import asyncio
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import TimeoutError as FutureTimeoutError
from threading import Thread
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, Gauge, start_http_server
from prometheus_client.metrics_core import Metric
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from headwater.logtier.group.registry import AnyGroup
from headwater.logtier.handlers.context import Services
from headwater.logtier.log.cleaning.cleaner import CleanerCounters
from headwater.logtier.log.retention_holds import HoldState
from headwater.logtier.metadata.store import SessionState
from headwater.logtier.metrics.end_offsets import EndOffsets, RemoteEnd
from headwater.logtier.metrics.families import (
    broker_families,
    cleaner_families,
    hold_families,
    request_families,
    topic_families,
)
from headwater.logtier.metrics.partition_families import GroupFamilies, PartitionFamilies, cluster_families
from headwater.logtier.metrics.replication_families import ReplicationFamilies, controller_families
from headwater.logtier.protocol.errors import KafkaError
from headwater.logtier.protocol.topic_partition import TopicPartition
from headwater.logtier.runtime.metrics import BrokerMetrics

#: Partitions or offsets collected before the event loop may serve clients.
SLICE = 250
#: Time limit of a scrape, after which Prometheus gives up as well.
COLLECT_S_MAX = 30

logger = logging.getLogger(__name__)


class BrokerCollector(Collector):
    """Collects all metrics on the broker's event loop, called from the HTTP server's thread."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        services: Services,
        metrics: BrokerMetrics,
        cleaner: CleanerCounters,
        holds: Mapping[TopicPartition, HoldState],
        connections: Mapping[str, int],
        session: Callable[[], SessionState | None],
        remote_end: RemoteEnd,
    ) -> None:
        """`session` tells the state of the session with a shared metadata store, None without one."""
        self._loop = loop
        self._services = services
        self._metrics = metrics
        self._cleaner = cleaner
        self._holds = holds
        self._connections = connections
        self._session = session
        self._end_offsets = EndOffsets(services.metadata, services.replica_manager, remote_end)

    def describe(self) -> Iterable[Metric]:
        """Return nothing, so that registration needs no collection."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Yield all families with their present values; none while the broker stops."""
        try:
            future = asyncio.run_coroutine_threadsafe(self.gather(), self._loop)
        except RuntimeError:
            return
        try:
            yield from future.result(COLLECT_S_MAX)
        except FutureTimeoutError:
            future.cancel()
            logger.warning("the metrics were not collected within %d s", COLLECT_S_MAX)

    async def gather(self) -> list[Metric]:
        """Collect all families; runs on the event loop."""
        services = self._services
        families: list[Metric] = []
        groups = services.groups.loaded_groups()
        families += request_families(self._metrics)
        families += topic_families(self._metrics)
        families += broker_families(services, groups, self._connections)
        families += cleaner_families(self._cleaner)
        families += hold_families(self._holds)
        families += cluster_families(services.metadata.image)
        families += controller_families(
            services.metadata.image, services.metadata.static_config.node_id, services.controller, self._session()
        )
        families += await self._partitions()
        families += await self._groups(groups)
        return families

    async def _partitions(self) -> list[Metric]:
        told, replication = PartitionFamilies(), ReplicationFamilies()
        count = 0
        for topic in list(self._services.metadata.image.topics.values()):
            told.add_topic(topic)
            replication.add_topic(topic)
            for index, state in enumerate(topic.partitions):
                partition = self._services.replica_manager.usable_partition(TopicPartition(topic.name, index))
                told.add(topic.name, index, state, partition)
                replication.add(state, partition)
                count += 1
                if count % SLICE == 0:
                    await asyncio.sleep(0)
        brokers, is_controller = self._services.metadata.image.brokers, self._services.controller.is_active
        return [*told.families(), *replication.families(brokers, is_controller=is_controller)]

    async def _groups(self, groups: Iterable[AnyGroup]) -> Iterator[Metric]:
        told = GroupFamilies()
        count = 0
        for group in groups:
            try:
                offsets = self._services.groups.committed(group.group_id)
            except KafkaError:
                continue  # deleted meanwhile
            told.add(group, offsets, self._end_offsets.of(offsets))
            count += 1 + len(offsets)
            if count >= SLICE:
                count = 0
                await asyncio.sleep(0)
        return told.families()


class MetricsEndpoint:
    """The HTTP server; `start` opens its port, `stop` closes it."""

    def __init__(self, collector: Collector) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(collector)
        ProcessCollector(registry=self._registry)
        Gauge("headwater_process_id", "Process id of the broker.", registry=self._registry).set(os.getpid())
        self._server: WSGIServer | None = None
        self._thread: Thread | None = None

    def start(self, host: str, port: int) -> int:
        """Open the port (0: any free port) and return it.

        Raises:
            OSError: The port is not available.
        """
        self._server, self._thread = start_http_server(port, host, self._registry)
        return int(self._server.server_port)

    def stop(self) -> None:
        """Close the port."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
