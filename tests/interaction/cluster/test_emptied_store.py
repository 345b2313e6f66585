"""A ZooKeeper whose nodes are gone: brokers that belong to a cluster begin no other one in it, and keep their files."""

from __future__ import annotations

import asyncio
import logging
from asyncio import to_thread
from pathlib import Path

import pytest

from headwater.logtier.cluster import controlled_shutdown
from headwater.logtier.metadata import paths
from headwater.logtier.metadata.shared_store import CHANGES
from headwater.logtier.metadata.store import Create, Delete, Operation
from headwater.logtier.metadata.zookeeper.store import ZooKeeperStore
from tests.interaction.cluster.test_closest_replica import produce
from tests.interaction.cluster.test_damaged_nodes import create_flights, names
from tests.interaction.cluster.test_members import PATIENCE_S, Cluster, refusal, run, until

RECORDS = 20
#: Attempts of the brokers to register and to elect a controller.
ATTEMPTS_S = 2.5


def empty(cluster: Cluster) -> list[Operation]:
    """Delete all nodes, as `deleteall` of ZooKeeper's shell does; return what restores those that last."""
    nodes = sorted(cluster.model.nodes().items())
    cluster.model.write([Delete(path) for path, _ in reversed(nodes) if path != "/"], 0)
    return [Create(path, node.data) for path, node in nodes if path != "/" and not node.ephemeral_owner]


def lines(caplog: pytest.LogCaptureFixture, word: str) -> list[str]:
    return [message for record in caplog.records if word in (message := record.getMessage())]


def test_a_broker_with_a_used_folder_begins_no_cluster(tmp_path: Path) -> None:
    async def main() -> None:
        cluster = Cluster(tmp_path)
        await cluster.start(1)
        await cluster.settled()
        cluster_id = cluster.image(1).cluster_id
        await cluster.stop(1)
        stored = empty(cluster)
        before = names(tmp_path)
        line = await refusal(cluster.start(1))
        assert line == (
            f"{paths.CLUSTER_ID}: ZooKeeper has no cluster, and log folder {tmp_path}/broker-1 belongs to cluster "
            f"{cluster_id}; restore ZooKeeper's data, or set zookeeper.connect to the servers and the chroot of that "
            "cluster. A new cluster needs new folders"
        )
        assert list(cluster.model.nodes()) == ["/"]
        assert names(tmp_path) == before

        cluster.model.write(stored, 0)
        await cluster.start(1)
        await cluster.settled()
        assert cluster.image(1).cluster_id == cluster_id
        await cluster.stop(1)

    asyncio.run(main())


@pytest.mark.parametrize("damage", [b"version=1\nnode.id=1\n", b"\xff"])
def test_a_broker_with_a_damaged_folder_begins_no_cluster(tmp_path: Path, damage: bytes) -> None:
    async def main() -> None:
        cluster = Cluster(tmp_path)
        (tmp_path / "broker-1").mkdir()
        (tmp_path / "broker-1" / "meta.properties").write_bytes(damage)
        assert "meta.properties is damaged" in await refusal(cluster.start(1))
        assert list(cluster.model.nodes()) == ["/"]

    asyncio.run(main())


def test_a_first_start_that_was_ended_at_any_point_is_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folders have a cluster id only after ZooKeeper has it, whatever an answer's loss ended."""
    multi = ZooKeeperStore.multi

    async def main() -> None:
        for is_stored in (False, True):
            cluster = Cluster(tmp_path / str(is_stored))

            async def lose(store: ZooKeeperStore, operations: list[Operation], is_stored: bool = is_stored) -> None:
                if is_stored:
                    await multi(store, operations)
                raise KeyboardInterrupt("killed")

            with monkeypatch.context() as patch:
                patch.setattr(ZooKeeperStore, "multi", lose)
                with pytest.raises(KeyboardInterrupt):
                    await cluster.start(1)
            assert cluster.model.has(paths.CLUSTER_ID) == is_stored
            assert not (tmp_path / str(is_stored) / "broker-1").exists()
            await cluster.start(1)
            await cluster.settled()
            await cluster.stop(1)

    asyncio.run(main())


@pytest.mark.parametrize("sessions_end", [False, True])
def test_running_brokers_serve_on_without_the_nodes_and_go_on_when_they_are_restored(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, *, sessions_end: bool
) -> None:
    caplog.set_level(logging.INFO)

    async def scenario(cluster: Cluster) -> None:
        await create_flights(cluster)
        await to_thread(produce, cluster.brokers[1].bootstrap_address, RECORDS)
        epochs = {each: cluster.image(1).brokers[each].epoch for each in cluster.brokers}
        before = names(tmp_path)
        stored = empty(cluster)
        if sessions_end:
            for session_id in cluster.model.session_ids():
                cluster.model.expire(session_id)
        await asyncio.sleep(ATTEMPTS_S)
        for broker_id, broker in cluster.brokers.items():
            await to_thread(produce, broker.bootstrap_address, RECORDS)
            assert len(lines(caplog, f"broker {broker_id} is not registered: {paths.CLUSTER_ID}: the nodes of")) == 1
        assert not [record for record in caplog.records if record.exc_info]
        assert max(caplog.messages.count(each) for each in caplog.messages) <= len(cluster.brokers)
        assert list(cluster.model.nodes()) == ["/"]
        assert names(tmp_path) == before

        cluster.model.write(stored, 0)
        await until(
            lambda: (
                cluster.is_settled()
                and all(cluster.image(1).brokers[each].epoch > epoch for each, epoch in epochs.items())
            )
        )
        await to_thread(produce, cluster.brokers[1].bootstrap_address, RECORDS)
        assert not [each for each in names(tmp_path) if "-stray" in each or "-delete" in each]

    run(tmp_path, scenario)


def test_running_brokers_do_not_join_a_cluster_that_a_new_broker_has_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(controlled_shutdown, "TIMEOUT_MS", 0)  # their controller is none any more

    async def scenario(cluster: Cluster) -> None:
        await create_flights(cluster)
        before = names(tmp_path)
        empty(cluster)
        old = dict(cluster.brokers)
        await cluster.start(4)
        other_id = cluster.image(4).cluster_id
        for broker in old.values():
            async with asyncio.timeout(PATIENCE_S):
                reason = await broker.failed()
            assert reason.startswith((f"{paths.CLUSTER_ID}: ZooKeeper has cluster {other_id} now", f"{CHANGES}: "))
        assert set(cluster.image(4).brokers) == {4}
        assert cluster.image(4).controller_id == 4
        assert not cluster.image(4).topics
        assert names(tmp_path) == before

    run(tmp_path, scenario)
