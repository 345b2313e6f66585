"""Nodes of the store that somebody has damaged: each is named in one line, and costs no broker its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from headwater.logtier.metadata import paths
from headwater.logtier.metadata.store import Create, SetData
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
        assert f"the metadata node {path} has data that this version cannot read" in await refusal(cluster.start(4))
        cluster.model.write([SetData(path, stored)], 0)
        await cluster.start(4)
        await cluster.settled()

    run(tmp_path, scenario)
