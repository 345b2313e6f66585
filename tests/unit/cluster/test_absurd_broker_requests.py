"""Requests between brokers that no broker sends: without the right, of an epoch that is over, with absurd fields."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from headwater.logtier.client.connection import Request
from headwater.logtier.config.quotas import ClientQuota
from headwater.logtier.peers.controller_requests import (
    ProposedPartition,
    allocate_producer_ids_request,
    alter_partition_request,
    assign_replicas_to_dirs_request,
    broker_heartbeat_request,
    envelope_request,
)
from headwater.logtier.peers.leader_requests import write_txn_markers_request
from headwater.logtier.protocol.errors import ErrorCode
from headwater.logtier.security.operations import AclOperation
from headwater.logtier.security.serialized_principal import serialize_principal
from tests.control_plane import BROKER, Caller, ControlNode, ControlPlane, run
from tests.unit.cluster.test_forwarding import ALICE, Recording, create_topics, embedded, parts

INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1
NOBODY = UUID(int=7)
FOLDER = UUID(int=8)


def proposed(topic_id: UUID, partition: int, epoch: int, isr: dict[int, int]) -> ProposedPartition:
    return ProposedPartition(topic_id, partition, epoch, isr, partition_epoch=epoch)


def requests(broker_id: int, epoch: int) -> list[Request[Any]]:
    return [
        alter_partition_request(broker_id, epoch, [proposed(NOBODY, 0, 0, {broker_id: epoch})]),
        broker_heartbeat_request(broker_id, epoch, 0, want_shut_down=True),
        allocate_producer_ids_request(broker_id, epoch),
        assign_replicas_to_dirs_request(broker_id, epoch, {FOLDER: [(NOBODY, 0)]}),
    ]


async def codes(controller: ControlNode, broker_id: int, epoch: int, caller: Caller | None = None) -> set[int]:
    return {(await controller.answer(each, caller)).error_code for each in requests(broker_id, epoch)}


def test_a_client_without_cluster_action_is_no_broker() -> None:
    async def scenario(plane: ControlPlane) -> None:
        broker, controller = await parts(plane)
        controller.services.authorizer = Recording()
        of_client = await codes(controller, broker.node.broker_id, broker.node.registrar.epoch, Caller(ALICE))
        assert of_client == {ErrorCode.cluster_authorization_failed}

    run(scenario)


def test_the_quota_of_all_users_is_none_of_brokers() -> None:
    """A muted broker would delay the requests of clients that it forwards, the ISRs of its partitions, and markers."""

    async def scenario(plane: ControlPlane) -> None:
        broker, controller = await parts(plane)
        controller.services.authorizer = Recording(AclOperation.create)
        controller.services.quotas.replace([ClientQuota((("user", None),), {"request_percentage": 1e-6})])
        sent = [
            *requests(broker.node.broker_id, broker.node.registrar.epoch),
            envelope_request(embedded(create_topics("a")), serialize_principal(ALICE), b"\0" * 4),
        ]
        of_broker, of_client = Caller(BROKER), Caller(ALICE)
        for each in sent:
            await controller.answer(each, of_broker)
            await controller.answer(each, of_client)
        await controller.answer(write_txn_markers_request([]), of_broker)
        assert of_broker.muted_ms == []
        # Who is refused is no broker.
        assert len(of_client.muted_ms) == len(sent)

    run(scenario)


@pytest.mark.parametrize("epoch", [-1, 0, LONG_MAX])
@pytest.mark.parametrize("broker_id", [None, -1, 99, INT_MAX])
def test_a_broker_that_is_not_registered_in_this_epoch_is_refused(broker_id: int | None, epoch: int) -> None:
    """KAFKA-7235: the controller could not tell the requests of a broker from those before it bounced."""

    async def scenario(plane: ControlPlane) -> None:
        broker, controller = await parts(plane)
        sender = broker.node.broker_id if broker_id is None else broker_id
        assert await codes(controller, sender, epoch) == {ErrorCode.stale_broker_epoch}

    run(scenario)


def test_absurd_partitions_are_refused_one_by_one() -> None:
    async def scenario(plane: ControlPlane) -> None:
        broker, controller = await parts(plane)
        await broker.answer(create_topics("t"))
        await plane.settled()
        topic = controller.node.image.topics["t"]
        topic_id, own = topic.topic_id, topic.partitions[0].leader
        epoch = controller.node.image.brokers[own].epoch

        async def refused(partition: int, leader_epoch: int, isr: dict[int, int]) -> int:
            proposal = proposed(topic_id, partition, leader_epoch, isr)
            [answer] = (await controller.answer(alter_partition_request(own, epoch, [proposal]))).partitions
            return answer.error_code

        for partition in (-1, INT_MAX):
            assert await refused(partition, 0, {own: epoch}) == ErrorCode.unknown_topic_or_partition
        for leader_epoch, isr, code in (
            (-1, {own: epoch}, ErrorCode.fenced_leader_epoch),
            (INT_MAX, {own: epoch}, ErrorCode.not_controller),
            (0, {}, ErrorCode.invalid_request),
            (0, {own: epoch, -1: epoch}, ErrorCode.invalid_request),
            (0, {own: epoch, INT_MAX: epoch}, ErrorCode.invalid_request),
        ):
            assert await refused(0, leader_epoch, isr) == code
        assert controller.node.image.topics["t"].partitions == topic.partitions

    run(scenario)


def test_absurd_places_of_replicas_are_refused_one_by_one() -> None:
    async def scenario(plane: ControlPlane) -> None:
        broker, controller = await parts(plane)
        await broker.answer(create_topics("t"))
        await plane.settled()
        topic = controller.node.image.topics["t"]
        own = topic.partitions[0].leader
        epoch = controller.node.image.brokers[own].epoch
        places = [(topic.topic_id, -1), (topic.topic_id, INT_MAX), (NOBODY, 0), (topic.topic_id, 0)]

        for folder in (FOLDER, UUID(int=0)):
            answer = await controller.answer(assign_replicas_to_dirs_request(own, epoch, {folder: places}))
            assert (answer.error_code, [answer.replicas[each] for each in places]) == (
                ErrorCode.none,
                [ErrorCode.unknown_topic_or_partition] * 2 + [ErrorCode.unknown_topic_id, ErrorCode.none],
            )

    run(scenario)
