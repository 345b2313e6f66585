"""Our reader and our transactional producer while brokers are killed and return: each acknowledged record once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from headwater.logtier.client.cluster import LATEST, ClientConfig, ClusterClient, parse_bootstrap_servers
from headwater.logtier.client.coordinators import TRANSACTION, find_coordinator
from headwater.logtier.client.errors import AbortableTransactionError
from headwater.logtier.client.fetcher import FetchConfig, FetchedRecords, read_partition
from headwater.logtier.client.topics import ensure_topic
from headwater.logtier.client.transactional_producer import TransactionalProducer, TransactionConfig
from headwater.logtier.records.batch import Record, decode_end_transaction_marker, decode_records, iterate_batches

if TYPE_CHECKING:
    from tests.conformance.cluster.conftest import ClusterProcesses, MakeCluster

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

TOPIC = "flights"
TRANSACTIONAL_ID = "stage"
PARTITIONS = 3
IDS = (1, 2, 3)
PATIENCE_S = 300
COMMITS_BETWEEN = 5
PROPERTIES = {
    "default_replication_factor": "3",
    "min_insync_replicas": "2",
    "transaction_state_log_num_partitions": "2",
    "transaction_state_log_replication_factor": "3",
    "transaction_state_log_min_isr": "2",
}


def client(cluster: ClusterProcesses) -> ClusterClient:
    servers = parse_bootstrap_servers(",".join(cluster.address(each) for each in IDS))
    return ClusterClient(ClientConfig(servers, api_timeout_ms=PATIENCE_S * 1000, read_committed=True))


class Writer:
    """Commits transactions of one record for each partition until it is stopped; counts what was acknowledged."""

    def __init__(self, cluster: ClusterProcesses) -> None:
        self._cluster = cluster
        self._stop = threading.Event()
        self.committed = 0

    def run(self) -> None:
        with client(self._cluster) as brokers:
            producer = TransactionalProducer(brokers, TransactionConfig(TRANSACTIONAL_ID))
            while not self._stop.is_set():
                try:
                    producer.begin([(TOPIC, partition) for partition in range(PARTITIONS)])
                    for partition in range(PARTITIONS):
                        producer.send(TOPIC, partition, [Record(None, b"%d" % self.committed, 1)])
                    producer.commit()
                except AbortableTransactionError:
                    producer.abort()  # and the same records again
                else:
                    self.committed += 1

    def stop(self) -> None:
        self._stop.set()


class Reader:
    """Reads committed records as they come, until it has reached a number of them in each partition."""

    def __init__(self, cluster: ClusterProcesses) -> None:
        self._cluster = cluster
        self.wanted: int | None = None
        self.values: dict[int, list[int]] = {partition: [] for partition in range(PARTITIONS)}
        self._positions = dict.fromkeys(range(PARTITIONS), 0)

    def run(self) -> None:
        keys = [(TOPIC, partition) for partition in range(PARTITIONS)]
        deadline_s = time.monotonic() + PATIENCE_S
        with client(self._cluster) as brokers:
            while not self._is_complete():
                for (_, partition), end in brokers.listed_offsets(dict.fromkeys(keys, LATEST)).items():
                    start = self._positions[partition]
                    plan = (start, end.offset, FetchConfig(), end.leader_epoch)
                    for fetched in read_partition(brokers, TOPIC, partition, *plan) if end.offset > start else ():
                        self.values[partition] += committed(fetched)
                        self._positions[partition] = fetched.next_offset
                        deadline_s = time.monotonic() + PATIENCE_S
                assert time.monotonic() < deadline_s, self._positions
                time.sleep(0.05)

    def _is_complete(self) -> bool:
        return self.wanted is not None and all(len(found) >= self.wanted for found in self.values.values())


def committed(fetched: FetchedRecords) -> Iterator[int]:
    """The records of a fetch without those of aborted transactions."""
    coming = sorted(fetched.aborted, key=lambda each: each[1])
    aborted: set[int] = set()
    for header, batch in iterate_batches(fetched.data):
        while coming and coming[0][1] <= header.last_offset:
            aborted.add(coming.pop(0)[0])
        if header.is_control:
            marker = decode_end_transaction_marker(batch)
            if marker is not None and not marker.committed:
                aborted.discard(header.producer_id)
        elif header.producer_id not in aborted:
            yield from (int(bytes(record.value or b"")) for record in decode_records(batch))


def until(is_reached: Callable[[], bool], *running: Future[None]) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not is_reached():
        for each in running:
            if each.done():
                each.result()
        assert time.monotonic() < deadline_s, "it did not come about"
        time.sleep(0.05)


@contextmanager
def killed(cluster: ClusterProcesses, broker_id: int) -> Iterator[None]:
    """A broker is away, without having said good-bye; afterwards it serves again."""
    cluster.kill(broker_id)
    yield
    cluster.begin(broker_id, **PROPERTIES)
    cluster.await_serving(broker_id)


def test_each_acknowledged_record_is_read_once_and_in_order_while_brokers_are_killed(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(session_ms=2_000)
    for broker_id in IDS:
        cluster.begin(broker_id, **PROPERTIES)
    for broker_id in IDS:
        cluster.await_serving(broker_id)
    writer, reader = Writer(cluster), Reader(cluster)
    with client(cluster) as admin, ThreadPoolExecutor(2) as threads:
        ensure_topic(admin, TOPIC, partitions=PARTITIONS, configs={})
        running = (threads.submit(writer.run), threads.submit(reader.run))

        def await_commits() -> None:
            before = writer.committed
            until(lambda: writer.committed >= before + COMMITS_BETWEEN, *running)

        def leader() -> int:
            admin.forget_leader(TOPIC)
            return admin.leader(TOPIC, 0)

        def coordinator() -> int:
            what = "the coordinator"
            return admin.retry(what, lambda: find_coordinator(admin, TRANSACTION, TRANSACTIONAL_ID))

        try:
            await_commits()
            for victim in (leader, coordinator):
                with killed(cluster, victim()):
                    await_commits()
                await_commits()
        finally:
            writer.stop()
            until(running[0].done)
            reader.wanted = writer.committed
        for each in running:
            each.result()
    assert reader.values == {partition: list(range(writer.committed)) for partition in range(PARTITIONS)}
