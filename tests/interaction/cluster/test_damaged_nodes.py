"""Nodes of the store that somebody has damaged: each is named in one line, and costs no broker its place."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from headwater.logtier.cluster import controlled_shutdown
from headwater.logtier.metadata import paths
from headwater.logtier.metadata.shared_store import CHANGES
from headwater.logtier.metadata.store import Create, Delete, SetData
from tests.interaction.cluster.test_members import Cluster, refusal, run, until


def lines(caplog: pytest.LogCaptureFixture, word: str) -> list[str]:
    """Lines of the log with a word; none may have a stack trace."""
    found = [record for record in caplog.records if word in record.getMessage()]
    assert all(record.exc_info is None for record in found)
    return [record.getMessage() for record in found]


def test_a_damaged_registration_costs_no_broker_its_place(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(cluster: Cluster) -> None:
        epoch = cluster.image(1).brokers[1].epoch
        path = paths.broker_path(1)
        cluster.model.write([SetData(path, b"{damaged"), Create(f"{paths.BROKER_IDS}/one", b"")], 0)
        await until(lambda: bool(lines(caplog, "/brokers/ids/one is no registration")))
        # The controller goes on: it admits a broker that comes, and notices one that goes.
        await cluster.start(4)
        await cluster.settled()
        await cluster.stop(4)
        await cluster.settled()
        assert cluster.image(2).brokers[1].epoch == epoch
        assert any("delete it, and broker 1 registers again" in line for line in lines(caplog, path))

    run(tmp_path, scenario)


@pytest.mark.parametrize(
    ("path", "data"),
    [
        (paths.CLUSTER_ID, b"{}"),
        (paths.CONTROLLER, b'{"brokerid":"first"}'),
        (paths.CONTROLLER_EPOCH, b"many"),
    ],
)
def test_a_broker_that_finds_a_damaged_node_does_not_start(tmp_path: Path, path: str, data: bytes) -> None:
    async def scenario(cluster: Cluster) -> None:
        stored = cluster.model.read(path).data
        cluster.model.write([SetData(path, data)], 0)
        line = await refusal(cluster.start(4))
        assert f"the metadata node {path} has data that this version cannot read" in line
        assert line.endswith("; restore the node from a backup of the metadata, or use the release that wrote it")
        cluster.model.write([SetData(path, stored)], 0)
        await cluster.start(4)
        await cluster.settled()

    run(tmp_path, scenario)


def test_a_damaged_change_stops_no_broker(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(cluster: Cluster) -> None:
        end = int(cluster.model.read(CHANGES).data)
        cluster.model.write([Create(f"{CHANGES}/{end}", b"{damaged"), SetData(CHANGES, b"%d" % (end + 1))], 0)
        await until(lambda: len(lines(caplog, f"{CHANGES}/{end} has data that this version cannot read")) == 3)
        # The nodes are read instead, and changes are followed from the next one on.
        await cluster.start(4)
        await cluster.settled()
        await cluster.stop(4)
        await cluster.settled()

    run(tmp_path, scenario)


def test_a_list_of_changes_that_was_set_back_stops_the_brokers_with_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(controlled_shutdown, "TIMEOUT_MS", 0)  # it asks a controller that has ended, too

    async def main() -> None:
        cluster = Cluster(tmp_path)
        broker = await cluster.start(1)
        await cluster.settled()
        end = int(cluster.model.read(CHANGES).data)
        cluster.model.write([Delete(f"{CHANGES}/{end - 1}"), SetData(CHANGES, b"%d" % (end - 1))], 0)
        cluster.model.lose_connection("broker-1")
        reason = f"{CHANGES}: {end - 1} is the next change, and {end - 1} is applied: ZooKeeper was restored"
        assert (await broker.failed()).startswith(reason)
        await cluster.stop(1)
        assert not [record for record in caplog.records if record.exc_info]

    asyncio.run(main())
