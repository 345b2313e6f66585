"""Our reader and our transactional producer while brokers are killed and return: each acknowledged record once."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from headwater.logtier.client.coordinators import TRANSACTION, find_coordinator
from headwater.logtier.client.topics import ensure_topic
from tests.acknowledged_records import (
    PARTITIONS,
    PATIENCE_S,
    TOPIC,
    TRANSACTIONAL_ID,
    CommittedReader,
    CommittingWriter,
    client,
)

if TYPE_CHECKING:
    from tests.conformance.cluster.conftest import ClusterProcesses, MakeCluster

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

IDS = (1, 2, 3)
COMMITS_BETWEEN = 5
PROPERTIES = {
    "default_replication_factor": "3",
    "min_insync_replicas": "2",
    "transaction_state_log_num_partitions": "2",
    "transaction_state_log_replication_factor": "3",
    "transaction_state_log_min_isr": "2",
}


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
    addresses = ",".join(cluster.address(each) for each in IDS)
    writer, reader = CommittingWriter(addresses), CommittedReader(addresses)
    with client(addresses) as admin, ThreadPoolExecutor(2) as threads:
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
