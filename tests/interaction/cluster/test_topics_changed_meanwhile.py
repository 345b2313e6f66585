"""Topics that grow, go and are made again while a whole broker is away, and what it does when it returns."""

from __future__ import annotations

from asyncio import to_thread
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions

from headwater.logtier.controller import state
from headwater.logtier.controller.commands import NewTopic
from tests.interaction.cluster.test_members import PATIENCE_S, Cluster, run, until

RECORDS = 50
SEGMENT = "00000000000000000000.log"
#: Folders of deleted logs go soon.
BRIEF = {"log.segment.delete.delay.ms": 100, "log.retention.check.interval.ms": 100}


def produce(address: str, topic: str, partitions: Sequence[int], prefix: str) -> None:
    """Write RECORDS to each partition, each acknowledged by its ISR."""
    producer = Producer({"bootstrap.servers": address, "acks": "all"})
    failures: list[object] = []
    for partition in partitions:
        for number in range(RECORDS):
            producer.produce(
                topic,
                f"{prefix}-{partition}-{number}",
                partition=partition,
                on_delivery=lambda error, _: failures.append(error) if error else None,
            )
    assert producer.flush(PATIENCE_S) == 0
    assert failures == []


def values(address: str, topic: str, counts: Mapping[int, int]) -> dict[int, list[str]]:
    """The first records of each partition, from its leader."""
    found: dict[int, list[str]] = {}
    consumer = Consumer({"bootstrap.servers": address, "group.id": "readers", "enable.auto.commit": False})
    for partition, count in counts.items():
        consumer.assign([TopicPartition(topic, partition, 0)])
        records = consumer.consume(count, PATIENCE_S)
        found[partition] = [(record.value() or b"").decode() for record in records]
    consumer.close()
    return found


def grow(address: str, topic: str, count: int, assignments: list[list[int]]) -> None:
    admin = AdminClient({"bootstrap.servers": address})
    growing = admin.create_partitions([NewPartitions(topic, count, replica_assignment=assignments)])
    growing[topic].result(PATIENCE_S)


def folders(cluster: Cluster, broker_id: int, topic: str) -> list[str]:
    """Names of the folders of a topic's logs, those of deleted logs and those set aside included."""
    return sorted(each.name for each in (cluster.folder / f"broker-{broker_id}").glob(f"{topic}-*"))


def segment(cluster: Cluster, broker_id: int, log: str) -> bytes:
    return (cluster.folder / f"broker-{broker_id}" / log / SEGMENT).read_bytes()


def test_new_partitions_of_a_broker_that_was_away_are_filled_from_their_leaders(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        away, *others = sorted(cluster.brokers, key=lambda each: each == cluster.image(1).controller_id)
        (created,) = await cluster.controller().create_topics([NewTopic("grown", -1, -1, {0: [away, *others]})])
        assert created.error is None
        address = cluster.brokers[others[0]].bootstrap_address
        await to_thread(produce, address, "grown", [0], "before")
        await cluster.stop(away)
        await cluster.settled()
        # One that it is to lead when it is back, one that it only follows, and one of which it has no replica.
        assignments = [[away, *others], [others[0], away], [others[1], others[0]]]
        with pytest.raises(Exception, match="the others have 3"):
            await to_thread(grow, address, "grown", 4, assignments)
        assignments = [[away, *others], [others[0], away, others[1]], [others[1], others[0], away]]
        await to_thread(grow, address, "grown", 4, assignments)
        await until(lambda: len(cluster.image(others[0]).topics["grown"].partitions) == 4)
        grown = cluster.image(others[0]).topics["grown"].partitions
        assert [set(each.isr) for each in grown] == [set(others)] * 4
        assert [each.leader for each in grown[1:]] == [others[0], others[0], others[1]]
        await to_thread(produce, address, "grown", range(4), "meanwhile")
        assert folders(cluster, away, "grown") == ["grown-0"]

        await cluster.start(away)
        await until(lambda: [len(each.isr) for each in cluster.image(away).topics["grown"].partitions] == [3] * 4)
        assert folders(cluster, away, "grown") == ["grown-0", "grown-1", "grown-2", "grown-3"]
        for index, replicas in enumerate([[away, *others], *assignments]):
            copies = {segment(cluster, each, f"grown-{index}") for each in replicas}
            assert len(copies) == 1
        await until(lambda: cluster.image(others[0]).topics["grown"].partitions[1].leader == away)
        await to_thread(produce, cluster.brokers[away].bootstrap_address, "grown", range(4), "after")
        counts = {0: 3 * RECORDS, 1: 2 * RECORDS, 2: 2 * RECORDS, 3: 2 * RECORDS}
        found = await to_thread(values, address, "grown", counts)
        for index, records in found.items():
            times = ["before", "meanwhile", "after"] if index == 0 else ["meanwhile", "after"]
            assert records == [f"{time}-{index}-{number}" for time in times for number in range(RECORDS)]

    run(tmp_path, scenario)


def test_a_returning_broker_deletes_the_logs_of_deleted_topics_and_keeps_those_that_nobody_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(cluster: Cluster) -> None:
        controller_id = await cluster.settled()
        away, other = (each for each in cluster.brokers if each != controller_id)
        names = ["deleted", "forgotten", "replaced"]
        created = await cluster.controller().create_topics(
            [NewTopic(name, -1, -1, {0: [away, other]}) for name in names]
        )
        assert [each.error for each in created] == [None] * 3
        address = cluster.brokers[other].bootstrap_address
        for name in names:
            await to_thread(produce, address, name, [0], "old")
        ids = {each.name: each.topic.topic_id for each in created if each.topic is not None}
        old = {name: segment(cluster, away, f"{name}-0") for name in names}
        await cluster.stop(away)
        await cluster.settled()

        (deleted,) = await cluster.controller().delete_topics(["forgotten"])
        assert deleted.error is None
        with monkeypatch.context() as patch:
            # As if that were some days ago: the next deletion removes the tombstone.
            patch.setattr(state, "TOMBSTONE_MS", 0)
            gone = await cluster.controller().delete_topics(["deleted", "replaced"])
        assert [each.error for each in gone] == [None] * 2
        (created_again,) = await cluster.controller().create_topics([NewTopic("replaced", -1, -1, {0: [other, away]})])
        assert created_again.error is None
        await to_thread(produce, address, "replaced", [0], "new")
        assert created_again.topic is not None
        new_id = created_again.topic.topic_id
        await until(lambda: cluster.image(other).topic_by_id(new_id) is not None)
        assert set(cluster.image(other).deleted_topics) == {str(ids["deleted"]), str(ids["replaced"])}
        # Its files wait for the broker; those of the other one are gone in the background.
        assert [folders(cluster, away, name) for name in names] == [[f"{name}-0"] for name in names]

        await cluster.start(away, properties=BRIEF)
        await until(lambda: len(cluster.image(away).topics["replaced"].partitions[0].isr) == 2)
        await until(lambda: not folders(cluster, away, "deleted"))
        [kept] = folders(cluster, away, "forgotten")
        assert kept.endswith("-stray")
        assert segment(cluster, away, kept) == old["forgotten"]
        await until(lambda: folders(cluster, away, "replaced") == ["replaced-0"])
        assert segment(cluster, away, "replaced-0") == segment(cluster, other, "replaced-0") != old["replaced"]
        found = await to_thread(values, address, "replaced", {0: RECORDS})
        assert found == {0: [f"new-0-{number}" for number in range(RECORDS)]}
        assert folders(cluster, away, "forgotten") == [kept]

    run(tmp_path, scenario)
