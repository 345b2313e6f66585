"""Consumers that fetch from the replica of their rack (KIP-392), through the handlers, in virtual time.

The case of Kafka's system test fetch_from_follower; with real brokers and clients: interaction/cluster.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pytest
from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader

from headwater.logtier.client.connection import Request
from headwater.logtier.config.cluster import RACK_AWARE_SELECTOR
from headwater.logtier.metadata.topic_nodes import PartitionImage
from headwater.logtier.protocol.errors import ErrorCode
from headwater.logtier.replication.fetch_session import FINAL_EPOCH, INITIAL_EPOCH, NO_SESSION
from tests.unit.reading.conftest import encoded, make
from tests.unit.replication.handled_requests import handled
from tests.unit.replication.replica_cluster import TOPIC_ID, Cluster, led_by, run, until

RACKS: Final = {1: "a", 2: "b", 3: "c"}
VERSION: Final = 13
OK = ErrorCode.none


def start(cluster: Cluster, state: PartitionImage | None = None, racks: dict[int, str] | None = None) -> None:
    """Brokers in racks, with the selector."""
    cluster.start(led_by(1) if state is None else state)
    brokers = {each: replace(broker, rack=(racks or RACKS).get(each)) for each, broker in cluster.image.brokers.items()}
    cluster.publish(replace(cluster.image, brokers=brokers, registrations=brokers))
    for node in cluster.nodes.values():
        node.services.metadata.config = SimpleNamespace(  # type: ignore[assignment]
            replica_selector_class=RACK_AWARE_SELECTOR,
            fetch_max_bytes=1 << 20,
            replica_lag_time_max_ms=30_000,
            replica_fetch_wait_max_ms=500,
        )


async def ask(
    cluster: Cluster,
    broker_id: int,
    offset: int,
    *,
    rack: str = "",
    epoch: int = -1,
    wait_ms: int = 0,
    session: tuple[int, int] = (NO_SESSION, FINAL_EPOCH),
) -> Any:
    """The answer to a consumer."""
    partition = {
        "partition": 0,
        "current_leader_epoch": epoch,
        "fetch_offset": offset,
        "partition_max_bytes": 1 << 20,
    }
    tree = {
        "max_wait": wait_ms,
        "min_bytes": 1,
        "max_bytes": 1 << 20,
        "session_id": session[0],
        "session_epoch": session[1],
        "topics": [{"topic_id": TOPIC_ID, "partitions": [partition]}] if session[1] <= 0 else [],
        "forgotten_topics_data": [],
        "rack_id": rack,
    }
    body = encoded(make(load_request_schema(1, VERSION), tree))
    read = entity_reader(load_response_schema(1, VERSION))
    request = Request(1, VERSION, True, body, lambda data: read(bytes(data), 0)[0], True)
    return await handled(cluster.nodes[broker_id].services, request)


async def asked(cluster: Cluster, broker_id: int, offset: int, **how: Any) -> Any:
    [topic] = (await ask(cluster, broker_id, offset, **how)).responses
    [found] = topic.partitions
    return found


async def replicated(cluster: Cluster, count: int = 5) -> None:
    cluster.nodes[1].append(count)
    await cluster.equal(count)


def test_the_leader_sends_a_consumer_to_the_replica_in_its_rack_which_serves_it(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        start(cluster)
        await replicated(cluster)
        sent = await asked(cluster, 1, 0, rack="b")
        assert (sent.preferred_read_replica, sent.error_code, sent.records) == (2, OK, b"")
        assert sent.high_watermark == 5
        served = await asked(cluster, 2, 0, rack="b")
        assert served.preferred_read_replica == -1
        assert served.records == cluster.nodes[1].content()

    run(tmp_path, scenario)


@pytest.mark.parametrize("rack", ["a", "elsewhere", ""])
def test_the_leader_serves_its_own_rack_and_those_without_a_replica(tmp_path: Path, rack: str) -> None:
    async def scenario(cluster: Cluster) -> None:
        start(cluster)
        await replicated(cluster)
        served = await asked(cluster, 1, 0, rack=rack)
        assert served.preferred_read_replica == -1
        assert served.records == cluster.nodes[1].content()

    run(tmp_path, scenario)


def test_without_a_selector_the_leader_serves_every_rack(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        start(cluster)
        await replicated(cluster)
        cluster.nodes[1].services.metadata.config.replica_selector_class = None  # type: ignore[misc]
        assert (await asked(cluster, 1, 0, rack="b")).records

    run(tmp_path, scenario)


def test_a_replica_out_of_the_isr_or_without_the_offset_is_not_preferred(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.cut = {(3, 1)}
        start(cluster, led_by(1, isr=(1, 2)))
        cluster.nodes[1].append(5)
        await until(lambda: cluster.nodes[2].state()[2] == 5)
        assert (await asked(cluster, 1, 0, rack="c")).preferred_read_replica == -1
        cluster.cut = {(3, 1), (2, 1)}
        await asyncio.sleep(1)
        cluster.nodes[1].append(5)
        assert (await asked(cluster, 1, 5, rack="b")).preferred_read_replica == 2
        assert (await asked(cluster, 1, 6, rack="b")).preferred_read_replica == -1

    run(tmp_path, scenario)


def test_of_two_replicas_in_the_rack_the_one_that_has_more_is_preferred(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        start(cluster, racks={1: "a", 2: "b", 3: "b"})
        await replicated(cluster)
        cluster.cut = {(2, 1)}
        await asyncio.sleep(1)
        cluster.nodes[1].append(5)
        await until(lambda: cluster.nodes[3].state()[1] == 10)
        await asyncio.sleep(0.01)  # its next fetch
        assert (await asked(cluster, 1, 0, rack="b")).preferred_read_replica == 3

    run(tmp_path, scenario)


def test_a_session_tells_of_the_replica_although_nothing_else_is_new(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        start(cluster)
        await replicated(cluster)
        begun = await ask(cluster, 1, 5, session=(NO_SESSION, INITIAL_EPOCH))
        further = await ask(cluster, 1, 5, rack="b", session=(begun.session_id, 1), wait_ms=60_000)
        [topic] = further.responses
        assert [each.preferred_read_replica for each in topic.partitions] == [2]

    run(tmp_path, scenario)


def test_a_follower_serves_to_its_watermark_and_wakes_the_consumers_that_wait(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        start(cluster)
        await replicated(cluster)
        waiting = asyncio.ensure_future(asked(cluster, 2, 5, wait_ms=60_000))
        await asyncio.sleep(0.01)
        begun_s = asyncio.get_running_loop().time()
        cluster.nodes[1].append(2)
        found = await waiting
        assert found.records
        assert found.high_watermark == 7 == cluster.nodes[2].state()[2]
        assert asyncio.get_running_loop().time() - begun_s < 1

    run(tmp_path, scenario)


def test_above_its_watermark_a_follower_cannot_tell_whether_the_offset_exists(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        start(cluster)
        await replicated(cluster)
        cluster.cut = {(3, 1)}
        await asyncio.sleep(1)
        cluster.nodes[1].append(2)
        await until(lambda: cluster.nodes[2].state()[1:] == (7, 5))
        for offset in (6, 7, 100):
            assert (await asked(cluster, 2, offset)).error_code == ErrorCode.offset_not_available
        assert (await asked(cluster, 2, 0)).high_watermark == 5
        assert (await asked(cluster, 1, 100)).error_code == ErrorCode.offset_out_of_range
        assert (await asked(cluster, 1, 6)).error_code == OK, "the leader has it"

    run(tmp_path, scenario)


def test_a_follower_checks_the_leader_epoch(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        start(cluster)
        await replicated(cluster)
        cluster.elect(3)
        await asyncio.sleep(0.1)
        assert (await asked(cluster, 2, 0, epoch=1)).records
        assert (await asked(cluster, 2, 0, epoch=0)).error_code == ErrorCode.fenced_leader_epoch
        assert (await asked(cluster, 2, 0, epoch=2)).error_code == ErrorCode.unknown_leader_epoch

    run(tmp_path, scenario)
