"""ElectLeaders through any broker, and the placement of replicas over live brokers."""

from __future__ import annotations

from typing import Any

from headwater.logtier.client.connection import Request
from headwater.logtier.client.messages import kio_request
from headwater.logtier.controller.commands import NewTopic
from headwater.logtier.controller.reassignments import WantedReplicas
from headwater.logtier.metadata.topic_nodes import PartitionImage, chunk_path, decode_chunk
from headwater.logtier.protocol import messages
from headwater.logtier.protocol.errors import ErrorCode
from headwater.logtier.protocol.topic_partition import TopicPartition
from headwater.logtier.replication.partition_instructions import IsrMember, ProposeIsr
from tests.control_plane import ControlPlane, run


def elect(*partitions: tuple[str, int], is_unclean: bool = False) -> Request[Any]:
    asked = tuple({"topic": topic, "partitions": (index,)} for topic, index in partitions)
    return kio_request(
        43,
        2,
        {
            "election_type": int(is_unclean),
            "topic_partitions": asked or None,
            "timeout": messages.to_timedelta(9_000),
        },
    )


def outcomes(answer: Any) -> dict[tuple[str, int], ErrorCode]:
    return {
        (topic.topic, each.partition_id): each.error_code
        for topic in answer.replica_election_results
        for each in topic.partition_result
    }


async def assigned(plane: ControlPlane, *replicas: tuple[int, ...], min_isr: int = 2) -> None:
    controller = await plane.controller()
    configs = {"min.insync.replicas": str(min_isr)}
    new = NewTopic("t", assignments=dict(enumerate(replicas)), configs=configs)
    [result] = await controller.spawn(controller.controller.create_topics([new]))
    assert result.error is None
    await plane.settled()


def partition(plane: ControlPlane, index: int, topic: str = "t") -> PartitionImage:
    return next(iter(plane.nodes.values())).image.topics[topic].partitions[index]


async def shrink_or_grow(plane: ControlPlane, index: int, *isr: int) -> None:
    """The leader of a partition asks for another ISR."""
    known = partition(plane, index)
    control = plane.controls[known.leader]
    members = tuple(IsrMember(each, control.node.image.brokers[each].epoch) for each in isr)
    key = TopicPartition("t", index)
    control.proposals.propose(ProposeIsr(key, known.leader_epoch, known.partition_epoch, members))
    await plane.until(lambda: set(partition(plane, index).isr) == set(isr))
    await plane.settled()


def test_leaders_come_back_to_the_preferred_replicas_when_an_administrator_asks() -> None:
    async def scenario(plane: ControlPlane) -> None:
        away = (await plane.others())[0].node.broker_id
        others = [each for each in plane.nodes if each != away]
        await assigned(plane, (away, *others), (others[0], away, others[1]))
        plane.crash(away)
        await plane.settled()
        assert partition(plane, 0).leader == others[0]
        await plane.begin(away)
        await plane.settled()
        broker = (await plane.others())[0]
        # Out of the ISR, as no leader has taken it in yet.
        answer = await broker.answer(elect(("t", 0), ("t", 1), ("u", 0)))
        assert outcomes(answer) == {
            ("t", 0): ErrorCode.preferred_leader_not_available,
            ("t", 1): ErrorCode.election_not_needed,
            ("u", 0): ErrorCode.unknown_topic_or_partition,
        }
        await shrink_or_grow(plane, 0, *plane.nodes)
        assert outcomes(await broker.answer(elect())) == {("t", 0): 0}
        await plane.settled()
        assert partition(plane, 0).leader == away

    run(scenario)


def test_kafka_9212_every_broker_tells_the_leader_epoch_that_is_stored() -> None:
    """KAFKA-9212: the controller raised a leader epoch in ZooKeeper and sent brokers the one before. Clients asked with
    it, were fenced, and learnt the same one again from every broker.
    """

    async def scenario(plane: ControlPlane) -> None:
        away = (await plane.others())[0].node.broker_id
        others = [each for each in plane.nodes if each != away]
        await assigned(plane, (away, *others))
        known = partition(plane, 0)
        plane.crash(away)
        await plane.settled()
        await plane.begin(away)
        await plane.settled()
        await shrink_or_grow(plane, 0, *plane.nodes)
        assert outcomes(await (await plane.others())[0].answer(elect())) == {("t", 0): 0}
        await plane.settled()
        [stored] = decode_chunk("/", plane.model.nodes()[chunk_path("t", 0)].data)
        assert (stored.leader, stored.leader_epoch) == (away, known.leader_epoch + 2)
        assert {node.image.topics["t"].partitions[0] for node in plane.nodes.values()} == {stored}

    run(scenario)


def test_kafka_9212_every_broker_tells_the_leader_epoch_that_is_stored_when_a_reassignment_ends() -> None:
    """KAFKA-9212 as it was reported: a reassignment raised the epoch, and the metadata kept the one before.

    The change that ends it moves the leader as well.
    """

    async def scenario(plane: ControlPlane) -> None:
        first, second, third = plane.nodes
        key = TopicPartition("t", 0)
        await assigned(plane, (first, second))

        def is_everywhere() -> bool:
            [stored] = decode_chunk("/", plane.model.nodes()[chunk_path("t", 0)].data)
            return {node.image.topics["t"].partitions[0] for node in plane.nodes.values()} == {stored}

        before = partition(plane, 0)
        controller = await plane.controller()
        wanted = [WantedReplicas(key, (third, second))]
        [result] = await controller.spawn(controller.controller.alter_reassignments(wanted))
        assert result.error is None
        await plane.settled()
        moving = partition(plane, 0)
        assert (moving.leader, moving.reassignment is not None, is_everywhere()) == (first, True, True)
        control = plane.controls[first]
        members = tuple(IsrMember(each, control.node.image.brokers[each].epoch) for each in plane.nodes)
        control.proposals.propose(ProposeIsr(key, moving.leader_epoch, moving.partition_epoch, members))
        await plane.until(
            lambda: all(not node.image.topics["t"].partitions[0].reassignment for node in plane.nodes.values())
        )
        await plane.settled()
        ended = partition(plane, 0)
        assert (ended.leader, ended.replicas, is_everywhere()) == (third, (third, second), True)
        assert ended.leader_epoch > moving.leader_epoch >= before.leader_epoch

    run(scenario)


def test_an_unclean_election_is_held_when_it_is_asked_for_only() -> None:
    async def scenario(plane: ControlPlane) -> None:
        away = (await plane.others())[0].node.broker_id
        other = next(each for each in plane.nodes if each != away)
        await assigned(plane, (away, other), min_isr=1)
        await shrink_or_grow(plane, 0, away)
        plane.crash(away)
        await plane.settled()
        broker = (await plane.others())[0]
        assert partition(plane, 0).leader == -1
        assert outcomes(await broker.answer(elect(("t", 0), is_unclean=True))) == {("t", 0): 0}
        await plane.settled()
        led = partition(plane, 0)
        assert (led.leader, led.isr, led.is_recovering) == (other, (other,), True)

    run(scenario)


def test_a_topic_made_while_a_broker_is_away_may_have_replicas_on_it_but_not_only_there() -> None:
    async def scenario(plane: ControlPlane) -> None:
        away = (await plane.others())[0].node.broker_id
        plane.crash(away)
        await plane.settled()
        controller = await plane.controller()
        others = list(plane.nodes)
        results = await controller.spawn(
            controller.controller.create_topics(
                [
                    NewTopic("four", 1, 4),
                    NewTopic("three", 4, 3),
                    NewTopic("two", 4, 2),
                    NewTopic("manual", assignments={0: (away, others[0])}),
                    NewTopic("dead", assignments={0: (away,)}),
                    NewTopic("unknown", assignments={0: (others[0], 9)}),
                ]
            )
        )
        codes = {result.name: result.error and result.error.code for result in results}
        assert codes == {
            "four": ErrorCode.invalid_replication_factor,
            "three": None,
            "two": None,
            "manual": None,
            "dead": ErrorCode.invalid_replica_assignment,
            "unknown": ErrorCode.invalid_replica_assignment,
        }
        await plane.settled()
        assert all(set(each.replicas) == set(others) for each in controller.image.topics["two"].partitions)
        three = controller.image.topics["three"].partitions
        assert {each.leader for each in three} == set(others)
        assert all(each.replicas == (*each.isr, away) and set(each.isr) == set(others) for each in three)
        manual = partition(plane, 0, "manual")
        assert (manual.replicas, manual.leader, manual.isr) == ((away, others[0]), others[0], (others[0],))

    run(scenario)
