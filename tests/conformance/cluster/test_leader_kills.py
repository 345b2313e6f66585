"""Our reader and our transactional producer while brokers are killed and return: each acknowledged record once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from headwater.logtier.client.coordinators import TRANSACTION, find_coordinator
from headwater.logtier.client.topics import ensure_topic
from tests.acknowledged_records import PARTITIONS, TOPIC, TRANSACTIONAL_ID, client, each_read_once

if TYPE_CHECKING:
    from tests.conformance.cluster.conftest import ClusterProcesses, MakeCluster

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

IDS = (1, 2, 3)
PROPERTIES = {
    "default_replication_factor": "3",
    "min_insync_replicas": "2",
    "transaction_state_log_num_partitions": "2",
    "transaction_state_log_replication_factor": "3",
    "transaction_state_log_min_isr": "2",
}


@contextmanager
def killed(cluster: ClusterProcesses, broker_id: int) -> Iterator[None]:
    """A broker is away, without having said good-bye; afterwards it serves again."""
    cluster.kill(broker_id)
    yield
    cluster.serve(broker_id, **PROPERTIES)


def test_each_acknowledged_record_is_read_once_and_in_order_while_brokers_are_killed(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(session_ms=2_000)
    cluster.serve(*IDS, **PROPERTIES)
    addresses = cluster.servers()
    with client(addresses) as admin:
        ensure_topic(admin, TOPIC, partitions=PARTITIONS, configs={})

        def leader() -> int:
            admin.forget_leader(TOPIC)
            return admin.leader(TOPIC, 0)

        def coordinator() -> int:
            what = "the coordinator"
            return admin.retry(what, lambda: find_coordinator(admin, TRANSACTION, TRANSACTIONAL_ID))

        with each_read_once(addresses) as progress:
            progress.await_commits()
            for victim in (leader, coordinator):
                with killed(cluster, victim()):
                    progress.await_commits()
                progress.await_commits()
