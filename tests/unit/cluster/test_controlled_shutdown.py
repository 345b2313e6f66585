"""A broker stops after others lead its partitions, and nothing lets it wait forever."""

from __future__ import annotations

import asyncio

import pytest

from headwater.logtier.cluster import controlled_shutdown
from headwater.logtier.cluster.controlled_shutdown import shut_down_in_control
from headwater.logtier.controller.commands import NewTopic
from headwater.logtier.metadata.topic_nodes import NO_BROKER, PartitionImage
from headwater.logtier.peers.controller_requests import broker_heartbeat_request
from headwater.logtier.protocol.errors import ErrorCode
from headwater.logtier.protocol.topic_partition import TopicPartition
from headwater.logtier.replication.partition_instructions import IsrMember, ProposeIsr
from tests.control_plane import Caller, ControlNode, ControlPlane, run
from tests.virtual_time import LoopClock


async def shut_down(control: ControlNode) -> bool:
    node = control.node
    stopping = shut_down_in_control(
        node.broker_id, control.channel, LoopClock(), lambda: node.registrar.epoch, lambda: node.follower.applied
    )
    may_stop: bool = await node.spawn(stopping)
    return may_stop


async def created(plane: ControlPlane, *replicas: tuple[int, ...], configs: dict[str, str] | None = None) -> None:
    controller = await plane.controller()
    new = NewTopic("t", assignments=dict(enumerate(replicas)), configs=configs or {})
    [result] = await controller.spawn(controller.controller.create_topics([new]))
    assert result.error is None
    await plane.settled()


def states(control: ControlNode) -> tuple[PartitionImage, ...]:
    return control.node.image.topics["t"].partitions


async def propose(plane: ControlPlane, index: int, *isr: int) -> None:
    control = plane.controls[states(next(iter(plane.controls.values())))[index].leader]
    known = states(control)[index]
    members = tuple(IsrMember(each, control.node.image.brokers[each].epoch) for each in isr)
    before = len(control.decisions)
    key = TopicPartition("t", index)
    control.proposals.propose(ProposeIsr(key, known.leader_epoch, known.partition_epoch, members))
    await plane.until(lambda: len(control.decisions) > before)


def test_leaderships_move_before_the_broker_stops_and_it_joins_no_isr_again() -> None:
    async def scenario(plane: ControlPlane) -> None:
        control = (await plane.others())[0]
        own = control.node.broker_id
        a, b = (each for each in plane.nodes if each != own)
        await created(plane, (own, a, b), (a, own, b))
        assert await shut_down(control)
        await plane.settled()
        assert [(each.leader, own in each.isr) for each in states(control)] == [(a, False), (a, False)]
        # The leader wants it back, as it still fetches (KAFKA-14140).
        await propose(plane, 0, own, a, b)
        assert [decision.error_code for _, decision in plane.controls[a].decisions] == [ErrorCode.ineligible_replica]
        # The broker of a later epoch is welcome.
        plane.crash(own)
        await plane.settled()
        await plane.begin(own)
        await plane.settled()
        await propose(plane, 0, own, a, b)
        await plane.settled()
        assert set(states(plane.controls[own])[0].isr) == {own, a, b}

    run(scenario)


def test_the_broker_waits_for_a_replica_that_can_still_catch_up() -> None:
    async def scenario(plane: ControlPlane) -> None:
        control = (await plane.others())[0]
        own = control.node.broker_id
        other = next(each for each in plane.nodes if each != own)
        await created(plane, (own, other))
        await propose(plane, 0, own)
        stopping = asyncio.ensure_future(shut_down(control))
        await asyncio.sleep(2)
        assert not stopping.done()
        # As long as it leads, the broker takes others into the ISR.
        await propose(plane, 0, own, other)
        assert await stopping
        await plane.settled()
        assert (states(control)[0].leader, states(control)[0].isr) == (other, (other,))

    run(scenario)


def test_without_another_replica_that_is_alive_there_is_nothing_to_wait_for() -> None:
    async def scenario(plane: ControlPlane) -> None:
        control = (await plane.others())[0]
        own = control.node.broker_id
        other = (await plane.others())[1].node.broker_id
        await created(plane, (own, other))
        plane.crash(other)
        await plane.settled()
        assert await shut_down(control)
        assert states(control)[0].leader == own

    run(scenario)


@pytest.mark.parametrize("seed", range(3))
def test_a_controller_that_dies_meanwhile_leaves_the_rest_to_the_next_one(seed: int) -> None:
    async def scenario(plane: ControlPlane) -> None:
        control = (await plane.others())[0]
        own = control.node.broker_id
        first = await plane.controller()
        a, b = (each for each in plane.nodes if each != own)
        await created(plane, (own, a, b), (own, b, a))

        def crash(*_: int) -> None:
            if len(plane.network.arrived) == 1:
                asyncio.get_running_loop().call_later(0.001 * seed, plane.crash, first.broker_id)

        plane.network.before = crash
        assert await shut_down(control)
        await plane.until(lambda: first.broker_id not in plane.nodes)
        await plane.settled()
        rest = next(each for each in (a, b) if each != first.broker_id)
        assert {(each.leader, each.isr) for each in states(control)} == {(rest, (rest,))}

    run(scenario, seed)


def test_without_a_controller_the_broker_stops_after_the_time_limit() -> None:
    async def scenario(plane: ControlPlane) -> None:
        control = (await plane.others())[0]
        plane.model.kill()
        plane.crash((await plane.controller()).broker_id)
        begun_s = asyncio.get_running_loop().time()
        assert not await shut_down(control)
        assert asyncio.get_running_loop().time() - begun_s <= controlled_shutdown.TIMEOUT_MS / 1000
        plane.model.restart()

    run(scenario)


def test_a_heartbeat_is_checked_and_a_broker_may_change_its_mind() -> None:
    """KAFKA-7235: a late request of a broker that had bounced shut down its next process."""

    class Denying:
        def is_authorized(self, *_: object) -> bool:
            return False

        def is_authorized_for_any(self, *_: object) -> bool:
            return False

    async def scenario(plane: ControlPlane) -> None:
        control = (await plane.others())[0]
        controller = plane.controls[(await plane.controller()).broker_id]
        own, epoch = control.node.broker_id, control.node.registrar.epoch
        other = next(each for each in plane.nodes if each != own)
        await created(plane, (own, other))
        stale = await controller.answer(broker_heartbeat_request(own, epoch - 1, 0, want_shut_down=True))
        assert stale.error_code == ErrorCode.stale_broker_epoch
        leaving = await controller.answer(broker_heartbeat_request(own, epoch, 0, want_shut_down=True))
        assert leaving.should_shut_down
        staying = await controller.answer(broker_heartbeat_request(own, epoch, 0))
        assert not staying.should_shut_down
        await plane.settled()
        await propose(plane, 0, own, other)
        await plane.settled()
        assert set(states(control)[0].isr) == {own, other}
        controller.services.authorizer = Denying()
        denied = await controller.answer(broker_heartbeat_request(own, epoch, 0), Caller("User:mallory"))
        assert denied.error_code == ErrorCode.cluster_authorization_failed

    run(scenario)


async def is_let_go(plane: ControlPlane, control: ControlNode) -> None:
    """The controller lets a broker stop that wants to; it has not stopped yet."""
    controller = plane.controls[(await plane.controller()).broker_id]
    asking = broker_heartbeat_request(control.node.broker_id, control.node.registrar.epoch, 0, want_shut_down=True)
    assert (await controller.answer(asking)).should_shut_down
    await plane.settled()


def test_kip_841_a_broker_that_shuts_down_does_not_lead_when_the_leader_dies() -> None:
    """KIP-841: it was elected, and the clients came to a broker that stopped at once."""

    async def scenario(plane: ControlPlane) -> None:
        leader, follower = await plane.others()
        own = follower.node.broker_id
        await created(plane, (leader.node.broker_id, own))
        await is_let_go(plane, follower)
        [before] = states(follower)
        assert (before.isr, before.elr) == ((leader.node.broker_id,), (own,))
        plane.crash(leader.node.broker_id)
        await plane.settled()
        [after] = states(follower)
        assert (after.leader, own in after.elr) == (NO_BROKER, True)

    run(scenario)


def test_kip_841_no_record_is_given_up_for_a_broker_that_shuts_down() -> None:
    """An unclean election loses records so that somebody serves; this broker will not."""

    async def scenario(plane: ControlPlane) -> None:
        leader, follower = await plane.others()
        configs = {"min.insync.replicas": "1", "unclean.leader.election.enable": "true"}
        await created(plane, (leader.node.broker_id, follower.node.broker_id), configs=configs)
        await is_let_go(plane, follower)
        [before] = states(follower)
        assert (before.isr, before.elr) == ((leader.node.broker_id,), ())
        plane.crash(leader.node.broker_id)
        await plane.settled()
        [after] = states(follower)
        assert (after.leader, after.is_recovering) == (NO_BROKER, False)

    run(scenario)
