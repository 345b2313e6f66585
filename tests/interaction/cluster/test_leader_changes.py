"""Our reader and our transactional producer while brokers stop and return: each acknowledged record once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from headwater.logtier.client.cluster import LATEST
from headwater.logtier.client.topics import ensure_topic
from tests.acknowledged_records import PARTITIONS, TOPIC, CommittedReader, CommittingWriter, client
from tests.interaction.cluster.test_members import Cluster, run, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

COMMITS_BETWEEN = 5
PROPERTIES = {
    "default.replication.factor": 3,
    "min.insync.replicas": 2,
    "transaction.state.log.num.partitions": 1,
    "transaction.state.log.replication.factor": 3,
}


def leader(cluster: Cluster, topic: str) -> int:
    broker_id = next(iter(cluster.brokers))
    known = cluster.image(broker_id).topic(topic)
    assert known is not None
    return known.partitions[0].leader


def port(cluster: Cluster, broker_id: int) -> str:
    """The listener of a broker that keeps its address when it returns."""
    return f"PLAINTEXT://{cluster.brokers[broker_id].bootstrap_address}"


def test_each_acknowledged_record_is_read_once_and_in_order_while_leaders_move(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        addresses = ",".join(broker.bootstrap_address for broker in cluster.brokers.values())
        writer, reader = CommittingWriter(addresses), CommittedReader(addresses)
        with client(addresses) as admin:
            await asyncio.to_thread(ensure_topic, admin, TOPIC, partitions=PARTITIONS, configs={})
        running = [asyncio.create_task(asyncio.to_thread(each)) for each in (writer.run, reader.run)]

        def has_committed() -> Callable[[], bool]:
            before = writer.committed
            return lambda: writer.committed >= before + COMMITS_BETWEEN or any(each.done() for each in running)

        try:
            await until(has_committed())
            for topic in (TOPIC, "__transaction_state"):
                victim = leader(cluster, topic)
                listeners = port(cluster, victim)
                await cluster.stop(victim)
                await until(has_committed())
                await cluster.start(victim, properties={**PROPERTIES, "listeners": listeners})
                await until(has_committed())
        finally:
            writer.stop()
            await running[0]
            reader.wanted = writer.committed
        await running[1]
        key = (TOPIC, 0)
        with client(addresses) as admin:
            latest = (await asyncio.to_thread(admin.listed_offsets, {key: LATEST}))[key]
            first = (await asyncio.to_thread(admin.epoch_ends, {key: 0}))[key]
        assert first.leader_epoch == 0
        assert 0 < first.end_offset < latest.offset, "records of the first epoch and of later ones"
        assert latest.leader_epoch > 0
        assert reader.values == {partition: list(range(writer.committed)) for partition in range(PARTITIONS)}

    run(tmp_path, scenario, PROPERTIES)
