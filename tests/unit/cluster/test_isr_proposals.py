"""Leaders ask the controller for ISRs: answers are lost, controllers deposed, topics deleted, brokers bounced."""

from __future__ import annotations

import asyncio
import itertools
import logging

import pytest

from headwater.logtier.client.connection import Request
from headwater.logtier.cluster import isr_proposals
from headwater.logtier.controller import controller as controller_module
from headwater.logtier.controller.alter_partition import PartitionAlteration
from headwater.logtier.controller.commands import ConfigChange, ConfigOperation, NewTopic
from headwater.logtier.metadata import paths
from headwater.logtier.metadata.topic_nodes import PartitionImage
from headwater.logtier.peers.controller_requests import (
    AlterPartitionResult,
    ProposedPartition,
    alter_partition_request,
)
from headwater.logtier.protocol.errors import ErrorCode, KafkaError
from headwater.logtier.protocol.topic_partition import TopicPartition
from headwater.logtier.replication.partition_instructions import IsrDecision, IsrMember, ProposeIsr
from tests.control_plane import Caller, ControlNode, ControlPlane, run

ALTER_PARTITION = 56


async def created(plane: ControlPlane, topic: str = "t", partitions: int = 3) -> None:
    """A topic that broker p + 1 leads partition p of, as every broker knows."""
    controller = await plane.controller()
    assignments = {p: tuple((p + i) % 3 + 1 for i in range(3)) for p in range(partitions)}
    [result] = await controller.spawn(controller.controller.create_topics([NewTopic(topic, assignments=assignments)]))
    assert result.error is None
    await plane.settled()


def led_by(plane: ControlPlane, control: ControlNode, topic: str = "t") -> TopicPartition:
    partitions = control.node.image.topics[topic].partitions
    return TopicPartition(topic, next(p for p, each in enumerate(partitions) if each.leader == control.node.broker_id))


def state(control: ControlNode, key: TopicPartition) -> PartitionImage:
    return control.node.image.topics[key.topic].partitions[key.partition]


def proposal(control: ControlNode, key: TopicPartition, *isr: int, is_repeated: bool = False) -> ProposeIsr:
    image = control.node.image
    known = state(control, key)
    members = tuple(IsrMember(each, image.registrations[each].epoch) for each in isr)
    return ProposeIsr(key, known.leader_epoch, known.partition_epoch, members, is_repeated)


async def decided(plane: ControlPlane, control: ControlNode, count: int = 1) -> list[IsrDecision]:
    await plane.until(lambda: len(control.decisions) >= count)
    assert len(control.decisions) == count
    return [decision for _, decision in control.decisions]


def test_a_shrunk_isr_is_stored_and_adopted_when_this_brokers_image_has_it() -> None:
    async def scenario(plane: ControlPlane) -> None:
        await created(plane)
        control = (await plane.others())[0]
        key, own = led_by(plane, control), control.node.broker_id
        seen: list[tuple[int, ...]] = []
        control.proposals.decided = lambda _, decision: seen.extend([decision.isr, state(control, key).isr])
        control.proposals.propose(proposal(control, key, own))
        await plane.until(lambda: bool(seen))
        assert seen == [(own,), (own,)]

    run(scenario)


def test_proposals_made_while_a_request_is_under_way_share_the_next_one() -> None:
    async def scenario(plane: ControlPlane) -> None:
        await created(plane, partitions=12)
        control = (await plane.others())[0]
        own = control.node.broker_id
        keys = [
            TopicPartition("t", p)
            for p, each in enumerate(control.node.image.topics["t"].partitions)
            if each.leader == own
        ]
        assert len(keys) == 4
        control.proposals.propose(proposal(control, keys[0], own))
        await plane.until(lambda: plane.network.arrived.count(ALTER_PARTITION) == 1)
        for key in keys[1:]:
            control.proposals.propose(proposal(control, key, own))
        before = (await plane.controller()).controller.metadata_end_offset
        decisions = await decided(plane, control, 4)
        assert {decision.error_code for decision in decisions} == {ErrorCode.none}
        assert plane.network.arrived.count(ALTER_PARTITION) == 2
        # Three partitions of one topic in one change of the list; the first may be one of its own.
        assert (await plane.controller()).controller.metadata_end_offset <= before + 2

    run(scenario)


def test_no_request_has_more_partitions_than_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isr_proposals, "PARTITIONS_PER_REQUEST_MAX", 3)

    async def scenario(plane: ControlPlane) -> None:
        await created(plane, partitions=12)
        control = (await plane.others())[0]
        own = control.node.broker_id
        for p, each in enumerate(control.node.image.topics["t"].partitions):
            if each.leader == own:
                control.proposals.propose(proposal(control, TopicPartition("t", p), own))
        await decided(plane, control, 4)
        assert plane.network.arrived.count(ALTER_PARTITION) == 2

    run(scenario)


def test_a_lost_answer_is_asked_for_again_and_says_what_was_stored() -> None:
    async def scenario(plane: ControlPlane) -> None:
        await created(plane)
        control = (await plane.others())[0]
        key, own = led_by(plane, control), control.node.broker_id
        before = state(control, key)
        plane.network.loses_answer = lambda *_: len(plane.network.arrived) == 1
        control.proposals.propose(proposal(control, key, own))
        [decision] = await decided(plane, control)
        assert plane.network.arrived.count(ALTER_PARTITION) == 2
        assert decision == IsrDecision(ErrorCode.none, before.leader_epoch, before.partition_epoch + 1, (own,))

    run(scenario)


def test_a_controller_that_dies_in_the_middle_of_its_change_decides_nothing_twice() -> None:
    async def scenario(plane: ControlPlane) -> None:
        await created(plane)
        control = (await plane.others())[0]
        key, own = led_by(plane, control), control.node.broker_id
        before = state(control, key)
        first = await plane.controller()

        def crash(*_: int) -> None:
            if len(plane.network.arrived) == 1:
                asyncio.get_running_loop().call_later(0.001, plane.crash, first.broker_id)

        plane.network.before = crash
        control.proposals.propose(proposal(control, key, own))
        [decision] = await decided(plane, control)
        await plane.until(lambda: first.broker_id not in plane.nodes)
        await plane.settled()
        if decision.error_code is ErrorCode.none:
            assert decision.isr == (own,)
        else:  # the death of the first controller has changed the ISR before
            assert decision.error_code is ErrorCode.invalid_update_version
        assert state(control, key).leader_epoch == before.leader_epoch
        assert state(control, key).partition_epoch <= before.partition_epoch + 2

    for seed in range(6):
        run(scenario, seed)


def test_a_deposed_controller_refuses_and_the_next_one_decides() -> None:
    """KAFKA-6082: a deposed controller, not knowing it, went on writing states of partitions."""

    async def scenario(plane: ControlPlane) -> None:
        await created(plane)
        control = (await plane.others())[0]
        key, own = led_by(plane, control), control.node.broker_id
        first = await plane.controller()
        plane.model.cut(first.name)
        # Cut off and not yet suspended, it still counts as controller; its write cannot be executed.
        control.proposals.propose(proposal(control, key, own))
        await plane.until(lambda: control.node.image.controller_id not in (first.broker_id, -1))
        plane.model.heal(first.name)
        [decision] = await decided(plane, control)
        assert decision.error_code in (ErrorCode.none, ErrorCode.invalid_update_version)
        await plane.settled()

    run(scenario)


def test_a_new_state_waits_for_an_image_that_is_behind() -> None:
    async def scenario(plane: ControlPlane) -> None:
        await created(plane)
        control = (await plane.others())[0]
        key, own = led_by(plane, control), control.node.broker_id
        plane.model.cut(control.node.name)
        control.proposals.propose(proposal(control, key, own))
        await plane.until(lambda: plane.network.arrived.count(ALTER_PARTITION) == 1)
        await asyncio.sleep(1)
        assert control.decisions == []
        plane.model.heal(control.node.name)
        [decision] = await decided(plane, control)
        assert state(control, key).isr == decision.isr == (own,)

    run(scenario)


def test_a_leader_never_counts_with_a_new_isr_and_an_older_minimum() -> None:
    """min.insync.replicas rises to 3, then the ISR shrinks: whoever has the ISR knows the minimum."""

    async def scenario(plane: ControlPlane) -> None:
        await created(plane)
        control = (await plane.others())[0]
        key, own = led_by(plane, control), control.node.broker_id
        controller = await plane.controller()
        plane.model.cut(control.node.name)
        change = ConfigChange(2, "t", [ConfigOperation("min.insync.replicas", 0, "3")])
        await controller.spawn(controller.controller.alter_configs([change]))
        known: list[str | None] = []
        control.proposals.decided = lambda *_: known.append(
            control.node.image.topics["t"].configs.get("min.insync.replicas")
        )
        control.proposals.propose(proposal(control, key, own))
        await asyncio.sleep(1)
        plane.model.heal(control.node.name)
        await plane.until(lambda: bool(known))
        assert known == ["3"]

    run(scenario)


def test_a_proposal_of_a_deleted_topic_is_dropped_also_if_its_name_is_used_again() -> None:
    async def scenario(plane: ControlPlane) -> None:
        await created(plane)
        control = (await plane.others())[0]
        key, own = led_by(plane, control), control.node.broker_id
        held = asyncio.Event()
        plane.network.before = lambda *_: held.wait() if len(plane.network.arrived) == 1 else None
        other = led_by(plane, control)
        control.proposals.propose(proposal(control, other, own))
        await plane.until(lambda: plane.network.arrived == [ALTER_PARTITION])
        controller = await plane.controller()
        control.proposals.propose(proposal(control, key, own, 2))
        await controller.spawn(controller.controller.delete_topics(["t"]))
        await created(plane)
        held.set()
        await asyncio.sleep(5)
        assert control.decisions == []
        assert {len(each.isr) for each in control.node.image.topics["t"].partitions} == {3}
        control.proposals.propose(proposal(control, key, own))
        await decided(plane, control)

    run(scenario)


def test_a_repeated_proposal_waits_longer_each_time() -> None:
    async def scenario(plane: ControlPlane) -> None:
        await created(plane)
        control = (await plane.others())[0]
        key, own = led_by(plane, control), control.node.broker_id
        ahead = ProposeIsr(key, 90, 90, (IsrMember(own, -1),))
        repeated = ProposeIsr(key, 90, 90, (IsrMember(own, -1),), is_repeated=True)
        times: list[float] = []

        def again(_: ProposeIsr, decision: IsrDecision) -> None:
            assert decision.error_code is ErrorCode.not_controller
            times.append(asyncio.get_running_loop().time())
            if len(times) < 6:
                control.proposals.propose(repeated)

        control.proposals.decided = again
        control.proposals.propose(ahead)
        await plane.until(lambda: len(times) == 6)
        gaps = [round(after - before, 1) for before, after in itertools.pairwise(times)]
        assert gaps == [0.1, 0.2, 0.4, 0.8, 1.0]

    run(scenario)


def test_after_a_calm_time_the_waits_begin_anew() -> None:
    async def scenario(plane: ControlPlane) -> None:
        await created(plane)
        control = (await plane.others())[0]
        key = led_by(plane, control)
        repeated = ProposeIsr(key, 90, 90, (IsrMember(control.node.broker_id, -1),), is_repeated=True)
        for _ in range(5):
            control.proposals.propose(repeated)
            await decided(plane, control, len(control.decisions) + 1)
        await asyncio.sleep(isr_proposals.CALM_MS / 1000)
        begun_s = asyncio.get_running_loop().time()
        control.proposals.propose(repeated)
        await decided(plane, control, 6)
        assert asyncio.get_running_loop().time() - begun_s < 0.2

    run(scenario)


def test_a_decision_comes_after_all_who_follow_the_metadata_have_its_change() -> None:
    """The replica manager subscribes after the proposals; the partition must have the new state first."""

    async def scenario(plane: ControlPlane) -> None:
        await created(plane)
        control = (await plane.others())[0]
        key, own = led_by(plane, control), control.node.broker_id
        events: list[object] = []
        control.node.cache.subscribe(lambda delta: events.append(delta.new.topics["t"].partitions[key.partition].isr))
        control.proposals.decided = lambda _, decision: events.append(decision)
        plane.model.cut(control.node.name)
        control.proposals.propose(proposal(control, key, own))
        await asyncio.sleep(1)
        plane.model.heal(control.node.name)
        await plane.until(lambda: bool(events) and isinstance(events[-1], IsrDecision))
        assert events[-2] == (own,)

    run(scenario)


def test_a_newer_proposal_replaces_a_waiting_one() -> None:
    async def scenario(plane: ControlPlane) -> None:
        await created(plane)
        control = (await plane.others())[0]
        key, own = led_by(plane, control), control.node.broker_id
        old, new = proposal(control, key, own), proposal(control, key, own, own % 3 + 1)
        control.proposals.propose(old)
        control.proposals.propose(new)
        await decided(plane, control)
        assert control.decisions[0][0] is new

    run(scenario)


def test_a_broker_that_registered_again_asks_with_its_new_epoch() -> None:
    async def scenario(plane: ControlPlane) -> None:
        await created(plane)
        control = (await plane.others())[0]
        key, own = led_by(plane, control), control.node.broker_id
        known = control.node.registrar.epoch
        # For a moment the broker knows an older epoch of its own than the controller does.
        control.node.registrar.epoch = known - 1
        asyncio.get_running_loop().call_later(1.0, setattr, control.node.registrar, "epoch", known)
        control.proposals.propose(proposal(control, key, own))
        [decision] = await decided(plane, control)
        assert decision.isr == (own,)

    run(scenario)


def test_after_the_close_nothing_is_asked_and_nothing_decided() -> None:
    async def scenario(plane: ControlPlane) -> None:
        await created(plane)
        control = (await plane.others())[0]
        key, own = led_by(plane, control), control.node.broker_id
        control.proposals.propose(proposal(control, key, own))
        await control.proposals.aclose()
        control.proposals.propose(proposal(control, key, own))
        await asyncio.sleep(1)
        assert control.decisions == []

    run(scenario)


def test_an_error_of_one_leader_does_not_keep_the_decisions_of_others(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(plane: ControlPlane) -> None:
        await created(plane, partitions=6)
        control = (await plane.others())[0]
        own = control.node.broker_id
        keys = [
            TopicPartition("t", p)
            for p, each in enumerate(control.node.image.topics["t"].partitions)
            if each.leader == own
        ]
        served: list[TopicPartition] = []

        def decide(proposal: ProposeIsr, _: IsrDecision) -> None:
            served.append(proposal.topic_partition)
            if len(served) == 1:
                raise OSError("disk")

        control.proposals.decided = decide
        for key in keys:
            control.proposals.propose(proposal(control, key, own))
        await plane.until(lambda: len(served) == len(keys) == 2)

    with caplog.at_level(logging.ERROR):
        run(scenario)


# -- the controller's answers

Asked = ProposedPartition


def request(control: ControlNode, asked: Asked, epoch: int | None = None) -> Request[AlterPartitionResult]:
    return alter_partition_request(
        control.node.broker_id, control.node.registrar.epoch if epoch is None else epoch, [asked]
    )


def test_the_controller_checks_the_caller_before_the_partition() -> None:
    async def scenario(plane: ControlPlane) -> None:
        await created(plane)
        control = (await plane.others())[0]
        controller = plane.controls[(await plane.controller()).broker_id]
        key, own = led_by(plane, control), control.node.broker_id
        known = state(control, key)
        topic_id = control.node.image.topics["t"].topic_id
        asked = Asked(topic_id, key.partition, known.leader_epoch, {own: control.node.registrar.epoch}, 0)
        # Not the controller, even if the epoch is stale.
        refused = await control.answer(request(control, asked, epoch=0))
        assert refused.error_code == ErrorCode.not_controller
        refused = await controller.answer(request(control, asked, epoch=0))
        assert (refused.error_code, refused.partitions) == (ErrorCode.stale_broker_epoch, [])
        # A follower asks for another's partition.
        other = (await plane.others())[1]
        [part] = (await controller.answer(request(other, asked))).partitions
        assert part.error_code == ErrorCode.invalid_request
        [part] = (await controller.answer(request(control, asked._replace(isr={own: 5})))).partitions
        assert part.error_code == ErrorCode.ineligible_replica
        [part] = (await controller.answer(request(control, asked))).partitions
        assert (part.error_code, part.isr, part.leader_id, part.partition_epoch) == (0, (own,), own, 1)

    run(scenario)


def test_only_brokers_may_ask_and_only_between_brokers() -> None:
    class Denying:
        def is_authorized(self, principal: str, *_: object) -> bool:
            return principal == "User:broker"

        def is_authorized_for_any(self, *_: object) -> bool:
            return False

    async def scenario(plane: ControlPlane) -> None:
        await created(plane)
        control = (await plane.others())[0]
        controller = plane.controls[(await plane.controller()).broker_id]
        controller.services.authorizer = Denying()
        key, own = led_by(plane, control), control.node.broker_id
        topic_id = control.node.image.topics["t"].topic_id
        asked = Asked(topic_id, key.partition, 0, {own: control.node.registrar.epoch}, 0)
        refused = await controller.answer(request(control, asked), Caller("User:mallory"))
        assert (refused.error_code, refused.partitions) == (ErrorCode.cluster_authorization_failed, [])
        controller.services.inter_broker_listener = "INSIDE"
        with pytest.raises(Exception, match="not supported by this broker"):
            await controller.answer(request(control, asked))
        controller.services.inter_broker_listener = None
        with pytest.raises(Exception, match="not supported by this broker"):
            await controller.answer(request(control, asked))
        assert ALTER_PARTITION not in controller.services.advertised_versions

    run(scenario)


def test_a_command_of_a_deposed_controller_is_refused_as_a_whole() -> None:
    async def scenario(plane: ControlPlane) -> None:
        first = await plane.controller()
        first.controller.depose()
        with pytest.raises(KafkaError) as caught:
            await first.spawn(first.controller.alter_partitions(1, 0, []))
        assert caught.value.code is ErrorCode.not_controller
        first.election._changed.set()

    run(scenario)


def test_a_command_of_an_earlier_office_writes_nothing_in_a_later_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two writes of a command its controller is deposed and elected again: the plan may be out of date."""
    monkeypatch.setattr(controller_module, "PART_BYTES_MAX", 10)

    async def scenario(plane: ControlPlane) -> None:
        await created(plane, partitions=67)
        first = await plane.controller()
        own = first.broker_id
        led = [p for p, each in enumerate(first.image.topics["t"].partitions) if each.leader == own]
        asked = [
            PartitionAlteration(first.image.topics["t"].topic_id, p, 0, 0, ((own, first.registrar.epoch),))
            for p in (led[0], led[-1])
        ]
        reached = first.follower.reached

        async def reached_late(number: int) -> None:
            monkeypatch.setattr(first.follower, "reached", reached)
            await reached(number)
            first.controller.depose()
            await first.store.delete(paths.CONTROLLER)
            await plane.until(lambda: len(plane.controllers) == 1)

        monkeypatch.setattr(first.follower, "reached", reached_late)
        with pytest.raises(KafkaError) as caught:
            await first.spawn(first.controller.alter_partitions(own, first.registrar.epoch, asked))
        assert caught.value.code is ErrorCode.not_controller
        await plane.settled()
        partitions = first.image.topics["t"].partitions
        assert (len(partitions[led[0]].isr), len(partitions[led[-1]].isr)) == (1, 3)

    for seed in range(5):
        run(scenario, seed)
