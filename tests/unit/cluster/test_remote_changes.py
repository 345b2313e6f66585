"""What brokers ask of the controller for themselves: topics that clients or coordinators need, and producer ids."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from headwater.logtier.client.messages import kio_request
from headwater.logtier.cluster import remote_changes
from headwater.logtier.config import BrokerConfig
from headwater.logtier.controller.commands import NewTopic, TopicResult
from headwater.logtier.group.persistence.offsets_topic import OFFSETS_TOPIC, offsets_topic
from headwater.logtier.peers.controller_requests import allocate_producer_ids_request
from headwater.logtier.protocol.errors import ErrorCode, KafkaError
from headwater.logtier.state_topic.topic import StateTopic, create_state_topic
from tests.control_plane import Caller, ControlNode, ControlPlane, run

CREATE_TOPICS, ALLOCATE = 19, 67


async def other(plane: ControlPlane) -> ControlNode:
    return (await plane.others())[0]


async def create(control: ControlNode, *topics: NewTopic, **options: Any) -> list[TopicResult]:
    results: list[TopicResult] = await control.node.spawn(control.changes.create_topics(topics, **options))
    return results


async def created_in_the_end(control: ControlNode, topic: NewTopic) -> TopicResult:
    """As a client, which asks again as long as the controller does not answer in time."""
    while True:
        [result] = await create(control, topic)
        if result.error is None or result.error.code is not ErrorCode.request_timed_out:
            return result


def test_a_created_topic_is_in_the_image_of_the_broker_that_asked() -> None:
    async def scenario(plane: ControlPlane) -> None:
        control = await other(plane)
        good, bad = await create(control, NewTopic("t", 2, 3, configs={"retention.ms": "5"}), NewTopic("a b", 1, 1))
        assert good.error is None
        assert good.topic is control.node.image.topics["t"]
        assert (len(good.topic.partitions), good.topic.configs) == (2, {"retention.ms": "5"})
        assert bad.error is not None
        assert bad.error.code is ErrorCode.invalid_topic_exception
        [again] = await create(control, NewTopic("t", 2, 3))
        assert again.error is not None
        assert again.error.code is ErrorCode.topic_already_exists
        assert again.topic is control.node.image.topics["t"]
        [assigned] = await create(control, NewTopic("u", assignments={0: (3, 1), 1: (1, 2)}))
        assert assigned.topic is not None
        assert [each.replicas for each in assigned.topic.partitions] == [(3, 1), (1, 2)]

    run(scenario)


def test_a_client_that_asks_for_a_missing_topic_gets_it_created_by_the_controller() -> None:
    async def scenario(plane: ControlPlane) -> None:
        control = await other(plane)
        request = kio_request(
            3,
            12,
            {
                "topics": ({"topic_id": None, "name": "new"},),
                "allow_auto_topic_creation": True,
                "include_topic_authorized_operations": False,
            },
        )
        answer = await control.node.spawn(control.answer(request))
        assert [(topic.name, topic.error_code, len(topic.partitions)) for topic in answer.topics] == [("new", 0, 1)]
        assert plane.network.arrived == [CREATE_TOPICS]

    run(scenario)


def topic_of_groups(replication_factor: int) -> StateTopic:
    values = {"offsets.topic.replication.factor": replication_factor, "offsets.topic.num.partitions": 4}
    return offsets_topic(BrokerConfig.from_properties(values))


def test_a_coordinators_topic_has_its_replicas_and_live_leaders_or_is_not_created_yet() -> None:
    async def scenario(plane: ControlPlane) -> None:
        control = await other(plane)
        gone = (await plane.others())[1].node
        plane.crash(gone.broker_id)
        await plane.settled()
        with pytest.raises(KafkaError, match=r"only 3 broker\(s\) are registered, of which 2 are alive") as caught:
            await control.node.spawn(create_state_topic(control.changes, topic_of_groups(4)))
        assert caught.value.code is ErrorCode.coordinator_not_available
        await control.node.spawn(create_state_topic(control.changes, topic_of_groups(3)))
        partitions = control.node.image.topics[OFFSETS_TOPIC].partitions
        assert [len(each.replicas) for each in partitions] == [3] * 4
        leaders = [each.leader for each in partitions]
        assert set(leaders) == set(control.node.image.brokers) == {1, 2, 3} - {gone.broker_id}
        await plane.begin(gone.broker_id)
        await plane.settled()
        partitions = control.node.image.topics[OFFSETS_TOPIC].partitions
        assert [each.leader for each in partitions] == leaders

    run(scenario)


def test_the_quota_of_the_client_counts_where_it_asks() -> None:
    async def scenario(plane: ControlPlane) -> None:
        control = await other(plane)
        counted: list[int] = []

        def count(partitions: int) -> None:
            counted.append(partitions)
            if len(counted) > 2:
                raise KafkaError(ErrorCode.throttling_quota_exceeded)

        results = await create(
            control, NewTopic("a", 3, 1), NewTopic("b"), NewTopic("c", assignments={0: (1,)}), count_mutations=count
        )
        assert counted == [3, 1, 1]
        assert [result.error and result.error.code for result in results] == [
            None,
            None,
            ErrorCode.throttling_quota_exceeded,
        ]
        assert set(control.node.image.topics) == {"a", "b"}

    run(scenario)


@pytest.mark.parametrize("seed", range(4))
def test_a_topic_survives_lost_answers_and_dying_controllers(seed: int) -> None:
    async def scenario(plane: ControlPlane) -> None:
        control = await other(plane)
        first = await plane.controller()
        plane.network.loses_answer = lambda *_: len(plane.network.arrived) == 1

        def crash(*_: int) -> None:
            if len(plane.network.arrived) == 2:
                asyncio.get_running_loop().call_later(0.001 * seed, plane.crash, first.broker_id)

        plane.network.before = crash
        result = await created_in_the_end(control, NewTopic("t", 2, 2))
        assert result.error is None or result.error.code is ErrorCode.topic_already_exists
        assert result.topic is not None
        await plane.until(lambda: first.broker_id not in plane.nodes)

    run(scenario, seed)


def test_a_controller_cut_off_in_the_middle_leaves_the_topic_to_the_next_one() -> None:
    async def scenario(plane: ControlPlane) -> None:
        control = await other(plane)
        first = await plane.controller()
        plane.model.cut(first.name)
        creating = asyncio.ensure_future(created_in_the_end(control, NewTopic("t", 2, 2)))
        await plane.until(lambda: control.node.image.controller_id not in (first.broker_id, -1))
        plane.model.heal(first.name)
        result = await creating
        assert result.error is None or result.error.code is ErrorCode.topic_already_exists
        assert result.topic is not None

    run(scenario)


def test_a_block_of_ids_waits_for_a_controller_that_is_deposed_and_comes_back() -> None:
    async def scenario(plane: ControlPlane) -> None:
        control = await other(plane)
        first = await plane.controller()
        first.controller.depose()
        asyncio.get_running_loop().call_later(2, first.election._changed.set)
        assert await control.node.spawn(control.changes.producer_ids.next()) == 0

    run(scenario)


def test_without_a_controller_topics_and_ids_fail_in_time_with_errors_to_retry() -> None:
    async def scenario(plane: ControlPlane) -> None:
        control = await other(plane)
        plane.model.kill()
        plane.crash((await plane.controller()).broker_id)
        begun_s = asyncio.get_running_loop().time()
        [result] = await create(control, NewTopic("t", 2, 2))
        assert result.error is not None
        assert result.error.code is ErrorCode.request_timed_out
        with pytest.raises(KafkaError) as caught:
            await control.node.spawn(control.changes.producer_ids.next())
        assert caught.value.code is ErrorCode.coordinator_load_in_progress
        assert asyncio.get_running_loop().time() - begun_s <= 2 * remote_changes.TIMEOUT_MS / 1000
        plane.model.restart()

    run(scenario)


def test_a_broker_cut_off_from_the_store_does_not_wait_forever_for_its_image() -> None:
    async def scenario(plane: ControlPlane) -> None:
        control = await other(plane)
        plane.model.cut(control.node.name)
        [result] = await create(control, NewTopic("t", 1, 1))
        assert (result.error, result.topic) == (None, None)
        plane.model.heal(control.node.name)

    run(scenario)


# -- producer ids


def test_no_two_brokers_get_the_same_producer_id_whatever_is_lost() -> None:
    async def scenario(plane: ControlPlane) -> None:
        plane.network.loses_answer = lambda *_: len(plane.network.arrived) in (1, 4)
        seen: list[int] = []
        for round_ in range(3):
            for control in list(plane.controls.values()):
                blocks = [await control.node.spawn(control.changes.allocate_producer_ids(1)) for _ in range(2)]
                seen += [each for block in blocks for each in block]
            if round_ == 0:
                plane.crash((await plane.controller()).broker_id)
        assert len(seen) == len(set(seen)) > 10_000

    run(scenario)


def test_a_broker_uses_up_its_block_before_it_asks_again() -> None:
    async def scenario(plane: ControlPlane) -> None:
        control = await other(plane)
        ids = [await control.node.spawn(control.services.changes.producer_ids.next()) for _ in range(1001)]
        assert len(set(ids)) == 1001
        assert plane.network.arrived == [ALLOCATE, ALLOCATE]

    run(scenario)


def test_only_a_registered_broker_gets_a_block() -> None:
    class Denying:
        def is_authorized(self, *_: object) -> bool:
            return False

        def is_authorized_for_any(self, *_: object) -> bool:
            return False

    async def scenario(plane: ControlPlane) -> None:
        control = await other(plane)
        controller = plane.controls[(await plane.controller()).broker_id]
        own = control.node.broker_id
        for epoch, broker in ((control.node.registrar.epoch - 1, own), (0, 99)):
            refused = await controller.answer(allocate_producer_ids_request(broker, epoch))
            assert refused.error_code == ErrorCode.stale_broker_epoch
        controller.services.authorizer = Denying()
        refused = await controller.answer(
            allocate_producer_ids_request(own, control.node.registrar.epoch), Caller("User:mallory")
        )
        assert refused.error_code == ErrorCode.cluster_authorization_failed

    run(scenario)


def test_without_a_controller_a_client_learns_soon_that_a_missing_topic_has_no_leader_yet() -> None:
    """It produces to other topics on the connection on which it asks for this one."""

    async def scenario(plane: ControlPlane) -> None:
        control = await other(plane)
        plane.model.kill()
        await plane.until(lambda: not plane.controllers)
        request = kio_request(
            3,
            12,
            {
                "topics": ({"topic_id": None, "name": "new"},),
                "allow_auto_topic_creation": True,
                "include_topic_authorized_operations": False,
            },
        )
        begun_s = asyncio.get_running_loop().time()
        answer = await control.answer(request)
        assert [topic.error_code for topic in answer.topics] == [ErrorCode.leader_not_available]
        assert asyncio.get_running_loop().time() - begun_s <= remote_changes.CREATE_TIMEOUT_MS / 1000 + 1
        plane.model.restart()

    run(scenario)
