"""Topics that grow, go and are made again while a whole broker is away, and what it does when it returns."""

from __future__ import annotations

from asyncio import to_thread
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions
from confluent_kafka.admin import NewTopic as NewClientTopic

from headwater.logtier.controller import state
from headwater.logtier.controller.commands import NewTopic
from tests.interaction.cluster.test_members import PATIENCE_S, Cluster, run, until

RECORDS = 50
SEGMENT = "00000000000000000000.log"
OFFSETS_TOPIC = "__consumer_offsets"
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


def create(address: str, topic: str, partitions: int, replication_factor: int) -> None:
    admin = AdminClient({"bootstrap.servers": address})
    admin.create_topics([NewClientTopic(topic, partitions, replication_factor)])[topic].result(PATIENCE_S)


def grow(address: str, topic: str, count: int, assignments: list[list[int]] | None = None) -> None:
    admin = AdminClient({"bootstrap.servers": address})
    chosen = {} if assignments is None else {"replica_assignment": assignments}
    admin.create_partitions([NewPartitions(topic, count, **chosen)])[topic].result(PATIENCE_S)


def commit(address: str, group: str, position: TopicPartition) -> None:
    consumer = Consumer({"bootstrap.servers": address, "group.id": group})
    consumer.commit(offsets=[position], asynchronous=False)
    consumer.close()


def committed(address: str, group: str, topic: str) -> int:
    """The offset that a group has committed for partition 0."""
    consumer = Consumer({"bootstrap.servers": address, "group.id": group})
    [found] = consumer.committed([TopicPartition(topic, 0)], PATIENCE_S)
    consumer.close()
    return found.offset


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


def test_topics_are_made_and_grow_with_three_replicas_while_one_of_three_brokers_is_away(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        controller_id = await cluster.settled()
        away, other = (each for each in cluster.brokers if each != controller_id)
        await cluster.stop(away)
        await cluster.settled()
        address = cluster.brokers[other].bootstrap_address
        await to_thread(create, address, "made", 3, 3)
        await until(lambda: "made" in cluster.image(other).topics)
        await to_thread(grow, address, "made", 6)
        await until(lambda: len(cluster.image(other).topics["made"].partitions) == 6)
        with pytest.raises(Exception, match=r"4 cannot be reached: only 3 broker\(s\) .* of which 2 are alive"):
            await to_thread(create, address, "wide", 1, 4)
        await to_thread(produce, address, "made", range(6), "meanwhile")
        await to_thread(commit, address, "readers", TopicPartition("made", 0, 7))  # Makes __consumer_offsets.
        counts = {"made": 6, OFFSETS_TOPIC: 4}
        first = {name: cluster.image(other).topics[name].partitions for name in counts}
        for name, count in counts.items():
            assert len(first[name]) == count
            assert {(frozenset(each.isr), each.replicas[2]) for each in first[name]} == {
                (frozenset({controller_id, other}), away)
            }
            assert {each.leader for each in first[name]} == {controller_id, other}
        assert all(each.leader == each.replicas[0] for each in first[OFFSETS_TOPIC])

        await cluster.start(away)
        await until(
            lambda: all(len(each.isr) == 3 for name in counts for each in cluster.image(away).topics[name].partitions)
        )
        for name, count in counts.items():
            assert folders(cluster, away, name) == [f"{name}-{index}" for index in range(count)]
            for index in range(count):
                assert len({segment(cluster, each, f"{name}-{index}") for each in (1, 2, 3)}) == 1
            assert [each.leader for each in cluster.image(away).topics[name].partitions] == [
                each.leader for each in first[name]
            ]
        returned = cluster.brokers[away].bootstrap_address
        assert await to_thread(committed, returned, "readers", "made") == 7
        found = await to_thread(values, returned, "made", dict.fromkeys(range(6), RECORDS))
        assert found == {index: [f"meanwhile-{index}-{number}" for number in range(RECORDS)] for index in range(6)}

    run(tmp_path, scenario, {"offsets.topic.replication.factor": 3, "offsets.topic.num.partitions": 4})


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
