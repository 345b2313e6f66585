"""A ZooKeeper that was restored from an old copy: a broker whose logs are newer does not start, and keeps its files."""

from __future__ import annotations

from asyncio import to_thread
from pathlib import Path

from headwater.logtier.cluster.applied_changes import APPLIED_CHANGES
from headwater.logtier.controller.commands import NewTopic
from headwater.logtier.metadata.shared_store import CHANGES
from headwater.logtier.metadata.store import SetData
from headwater.logtier.metadata.topic_nodes import chunk_path
from headwater.logtier.protocol.topic_partition import TopicPartition
from tests.interaction.cluster.test_closest_replica import produce
from tests.interaction.cluster.test_members import Cluster, refusal, run, until

RECORDS = 20


def files(folder: Path) -> dict[str, bytes]:
    return {each.name: each.read_bytes() for each in folder.iterdir()}


def names(folder: Path) -> list[str]:
    return [each.name for each in folder.iterdir()]


def damage(checkpoint: Path) -> None:
    assert checkpoint.exists()
    checkpoint.write_text("not a checkpoint")


def test_a_broker_whose_log_is_newer_than_the_store_does_not_start(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        controller_id = await cluster.settled()
        first, second = (each for each in cluster.brokers if each != controller_id)
        (created,) = await cluster.controller().create_topics([NewTopic("flights", -1, -1, {0: [first, second]})])
        assert created.error is None
        path = chunk_path("flights", 0)
        old = cluster.model.read(path).data
        # The second one leads in a newer epoch, and has records of it.
        await cluster.stop(first)
        await until(lambda: cluster.image(second).topics["flights"].partitions[0].leader == second)
        await to_thread(produce, cluster.brokers[second].bootstrap_address, RECORDS)
        epoch = cluster.image(second).topics["flights"].partitions[0].leader_epoch
        await cluster.stop(second)
        await cluster.settled()
        log = tmp_path / f"broker-{second}" / str(TopicPartition("flights", 0))
        before = files(log)
        newest = cluster.model.read(path).data
        cluster.model.write([SetData(path, old)], 0)

        line = await refusal(cluster.start(second))
        assert line.startswith(
            f"{path}: the metadata are older than the logs: flights-0 has leader epoch 0 in ZooKeeper"
        )
        assert f"and {epoch} in {log}." in line
        assert "restore a newer copy of ZooKeeper's data" in line
        assert files(log) == before

        cluster.model.write([SetData(path, newest)], 0)
        await cluster.start(second)
        await cluster.settled()
        assert files(log).keys() >= before.keys()

    run(tmp_path, scenario)


def test_a_broker_that_has_applied_more_changes_than_the_store_has_does_not_start(tmp_path: Path) -> None:
    """No log has a newer leader epoch: a broker that was away would hold elections on an old assignment."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.settled()
        old = cluster.model.read(CHANGES).data
        (created,) = await cluster.controller().create_topics([NewTopic("flights", 1, 3)])
        assert created.error is None
        await cluster.settled()
        for each in list(cluster.brokers):
            await cluster.stop(each)
        newest = cluster.model.read(CHANGES).data
        cluster.model.write([SetData(CHANGES, old)], 0)
        line = await refusal(cluster.start(1))
        assert line.startswith(
            f"{CHANGES}: the metadata are older than the logs: the list of changes ends before {old.decode()}"
        )
        assert "restore a newer copy of ZooKeeper's data" in line
        assert not any(name.endswith("-stray") for name in names(tmp_path / "broker-1"))

        damage(tmp_path / "broker-1" / APPLIED_CHANGES)
        cluster.model.write([SetData(CHANGES, newest)], 0)
        for each in (1, 2, 3):
            await cluster.start(each)
        await cluster.settled()

    run(tmp_path, scenario)
