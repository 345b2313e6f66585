"""Requests of clients reach the controller through any broker, and their answers come back as they are."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.logtier.client.connection import Request
from headwater.logtier.client.messages import kio_request
from headwater.logtier.cluster import forwarding
from headwater.logtier.config import BrokerConfig
from headwater.logtier.config.quotas import ClientQuota
from headwater.logtier.handlers.registry import HANDLERS
from headwater.logtier.peers.controller_requests import envelope_request
from headwater.logtier.protocol import messages
from headwater.logtier.protocol.errors import ErrorCode, ProtocolViolationError
from headwater.logtier.security.operations import AclOperation
from headwater.logtier.security.serialized_principal import deserialize_principal, serialize_principal
from tests.control_plane import BROKER, Caller, ControlNode, ControlPlane, run

ENVELOPE = 58
ALICE = "User:alice"


def create_topics(*names: str, version: int = 7, replicas: int = 3) -> Request[Any]:
    topics = [
        {"name": name, "num_partitions": 1, "replication_factor": replicas, "assignments": (), "configs": ()}
        for name in names
    ]
    return kio_request(
        19, version, {"topics": tuple(topics), "timeout": messages.to_timedelta(9_000), "validate_only": False}
    )


class Recording:
    """An authorizer that notes who asks, and allows brokers everything and others some operations."""

    def __init__(self, *allowed: AclOperation) -> None:
        self.asked: list[tuple[str, str, AclOperation]] = []
        self._allowed = allowed

    def is_authorized(self, principal: str, host: str, operation: AclOperation, *_: object) -> bool:
        self.asked.append((principal, host, operation))
        return principal == BROKER or operation in self._allowed

    def is_authorized_for_any(self, *_: object) -> bool:
        return True


async def parts(plane: ControlPlane) -> tuple[ControlNode, ControlNode]:
    """A broker that forwards, and the controller."""
    return (await plane.others())[0], plane.controls[(await plane.controller()).broker_id]


def test_a_topic_is_created_through_a_broker_that_is_not_the_controller() -> None:
    async def scenario(plane: ControlPlane) -> None:
        broker, controller = await parts(plane)
        through_broker = await broker.answer(create_topics("a", "bad name"))
        assert plane.network.arrived == [ENVELOPE]
        directly = await controller.answer(create_topics("b", "bad name"))
        assert plane.network.arrived == [ENVELOPE]
        assert [topic.error_code for topic in through_broker.topics] == [0, ErrorCode.invalid_topic_exception]
        assert replace(through_broker.topics[0], name="b", topic_id=None) == replace(directly.topics[0], topic_id=None)
        await plane.settled()
        assert set(broker.node.image.topics) == {"a", "b"}

    run(scenario)


def test_the_controller_authorizes_the_client_and_not_the_broker() -> None:
    async def scenario(plane: ControlPlane) -> None:
        broker, controller = await parts(plane)
        authorizer = controller.services.authorizer = Recording()
        answer = await broker.answer(create_topics("a"), Caller(ALICE))
        assert answer.topics[0].error_code == ErrorCode.topic_authorization_failed
        assert authorizer.asked[0] == (BROKER, "10.0.0.9", AclOperation.cluster_action)
        assert set(authorizer.asked[1:]) == {(ALICE, "10.0.0.9", AclOperation.create)}
        controller.services.authorizer = Recording(AclOperation.create)
        answer = await broker.answer(create_topics("a"), Caller(ALICE))
        assert answer.topics[0].error_code == 0

    run(scenario)


def test_a_broker_without_cluster_action_may_not_speak_for_others() -> None:
    async def scenario(plane: ControlPlane) -> None:
        _, controller = await parts(plane)
        controller.services.authorizer = Recording(AclOperation.create)
        envelope = envelope_request(embedded(create_topics("a")), serialize_principal(BROKER), b"\0" * 4)
        result = await controller.answer(envelope, Caller(ALICE))
        assert (result.error_code, result.data) == (ErrorCode.cluster_authorization_failed, None)
        assert controller.node.image.topics == {}

    run(scenario)


def embedded(request: Request[Any], client: str = "tester") -> bytes:
    header = request.api_key.to_bytes(2) + request.api_version.to_bytes(2) + (77).to_bytes(4)
    return header + len(client).to_bytes(2) + client.encode() + (b"\0" if request.flexible else b"") + request.body


def test_refusals_of_forwarded_requests_do_not_fill_the_log_of_the_controller(caplog: pytest.LogCaptureFixture) -> None:
    """They count for the client's host, as those of its own connections do, and with those that cannot be read."""

    async def scenario(plane: ControlPlane) -> None:
        _, controller = await parts(plane)
        controller.services.authorizer = Recording()
        connection = Caller(BROKER)
        refused = embedded(kio_request(55, 0, {"topics": ()}))
        for request_data in (refused, refused, embedded(create_topics("a"))[:-9]):
            await controller.answer(envelope_request(request_data, serialize_principal(ALICE), b"\1\2\3\4"), connection)
        assert connection.refused[:2] == ["1.2.3.4"] * 2
        assert connection.refused.count("1.2.3.4") == 3

    caplog.set_level(logging.WARNING)
    run(scenario)
    assert len(caplog.records) == 1


METADATA = kio_request(
    3,
    12,
    {"topics": None, "allow_auto_topic_creation": False, "include_topic_authorized_operations": False},
)


@pytest.mark.parametrize(
    ("request_data", "principal", "host", "code"),
    [
        (embedded(create_topics("a")), None, b"\0" * 4, ErrorCode.principal_deserialization_failure),
        (embedded(create_topics("a")), b"\0\1\5User\2a\0\0", b"\0" * 4, ErrorCode.principal_deserialization_failure),
        (embedded(create_topics("a")), serialize_principal(ALICE), b"\0" * 5, ErrorCode.invalid_request),
        (embedded(create_topics("a"))[:-9], serialize_principal(ALICE), b"\0" * 4, ErrorCode.invalid_request),
        (b"\0\x13\0\x63" + b"\0" * 8, serialize_principal(ALICE), b"\0" * 4, ErrorCode.unsupported_version),
        # Metadata is answered by every broker itself.
        (embedded(METADATA), serialize_principal(ALICE), b"\0" * 4, ErrorCode.invalid_request),
        (
            embedded(envelope_request(embedded(create_topics("a")), serialize_principal(ALICE), b"\0" * 4)),
            serialize_principal(ALICE),
            b"\0" * 4,
            ErrorCode.invalid_request,
        ),
    ],
    ids=["no principal", "its version", "address", "truncated", "version", "not forwarded", "nested"],
)
def test_an_envelope_that_is_none_is_refused(
    request_data: bytes, principal: bytes | None, host: bytes, code: ErrorCode
) -> None:
    async def scenario(plane: ControlPlane) -> None:
        _, controller = await parts(plane)
        result = await controller.answer(envelope_request(request_data, principal, host))
        assert (result.error_code, result.data) == (code, None)
        assert controller.node.image.topics == {}

    run(scenario)


def test_a_malformed_request_ends_the_clients_connection_as_if_it_were_not_forwarded() -> None:
    async def scenario(plane: ControlPlane) -> None:
        broker, _ = await parts(plane)
        request = create_topics("a")
        broken = Request(request.api_key, request.api_version, True, request.body[:-6], request.decode, True)
        with pytest.raises(ProtocolViolationError):
            await broker.answer(broken)

    run(scenario)


def test_a_controller_that_dies_is_replaced_while_the_client_waits() -> None:
    async def scenario(plane: ControlPlane) -> None:
        broker, controller = await parts(plane)
        plane.crash(controller.node.broker_id)
        answer = await broker.answer(create_topics("a", replicas=2))
        assert answer.topics[0].error_code == 0
        await plane.settled()
        assert set(broker.node.image.topics) == {"a"}

    for seed in range(4):
        run(scenario, seed)


def test_an_answer_that_is_lost_leads_to_the_answer_of_a_repetition_and_to_one_topic() -> None:
    async def scenario(plane: ControlPlane) -> None:
        broker, _ = await parts(plane)
        plane.network.loses_answer = lambda *_: len(plane.network.arrived) == 1
        answer = await broker.answer(create_topics("a"))
        assert plane.network.arrived == [ENVELOPE, ENVELOPE]
        assert answer.topics[0].error_code == ErrorCode.topic_already_exists

    run(scenario)


def test_a_broker_that_becomes_controller_meanwhile_answers_itself() -> None:
    async def scenario(plane: ControlPlane) -> None:
        broker, _ = await parts(plane)
        own = broker.node.broker_id
        for other in list(plane.nodes):
            if other != own:
                plane.crash(other)
        answer = await broker.answer(create_topics("a", replicas=1))
        assert answer.topics[0].error_code == 0
        assert broker.node.controller.is_active
        assert plane.network.arrived == []

    run(scenario)


def test_a_controller_that_is_deposed_and_not_replaced_yet_waits_instead_of_refusing() -> None:
    async def scenario(plane: ControlPlane) -> None:
        _, controller = await parts(plane)
        controller.node.controller.depose()
        assert controller.node.image.controller_id == controller.node.broker_id
        asyncio.get_running_loop().call_later(2, controller.node.election._changed.set)
        answer = await controller.answer(create_topics("a"))
        assert answer.topics[0].error_code == 0

    run(scenario)


def test_a_controller_deposed_in_the_middle_lets_the_next_one_answer() -> None:
    async def scenario(plane: ControlPlane) -> None:
        broker, controller = await parts(plane)
        plane.model.cut(controller.node.name)
        answering = asyncio.ensure_future(broker.answer(create_topics("a")))
        await plane.until(lambda: broker.node.image.controller_id not in (controller.node.broker_id, -1))
        plane.model.heal(controller.node.name)
        answer = await answering
        assert answer.topics[0].error_code in (0, ErrorCode.topic_already_exists, ErrorCode.invalid_replication_factor)
        await plane.settled()
        assert len(broker.node.image.topics) == (answer.topics[0].error_code != ErrorCode.invalid_replication_factor)

    for seed in range(4):
        run(scenario, seed)


def test_without_a_controller_the_client_gets_an_error_that_it_can_retry_in_time() -> None:
    async def scenario(plane: ControlPlane) -> None:
        broker, controller = await parts(plane)
        plane.model.kill()
        plane.crash(controller.node.broker_id)
        begun_s = asyncio.get_running_loop().time()
        answer = await broker.answer(create_topics("a", "b"))
        assert [topic.error_code for topic in answer.topics] == [ErrorCode.request_timed_out] * 2
        assert 20 < asyncio.get_running_loop().time() - begun_s <= 25
        plane.model.restart()

    run(scenario)


def test_the_clients_quota_of_mutations_is_the_controllers_and_the_broker_mutes_the_client() -> None:
    async def scenario(plane: ControlPlane) -> None:
        broker, controller = await parts(plane)
        quotas = controller.services.quotas
        quotas.replace([ClientQuota((("user", "alice"),), {"controller_mutation_rate": 0.1})])
        caller = Caller(ALICE)
        waits = []
        for name in ("a", "b", "c", "d"):
            answer = await broker.answer(create_topics(name, "x" + name, "y" + name, version=6), caller)
            waits.append(messages.milliseconds(answer.throttle_time))
        assert waits[-1] > 0
        assert caller.muted_ms == [wait for wait in waits if wait]
        assert broker.services.metrics.api(19).errors[0] == 4

    run(scenario)


def test_a_client_is_not_charged_for_the_time_of_the_controller(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its quota is one of the broker's time: it would be muted because the controller was away."""

    async def scenario(plane: ControlPlane) -> None:
        loop = asyncio.get_running_loop()
        monkeypatch.setattr("headwater.logtier.handlers.loop_time.perf_counter_ns", lambda: int(loop.time() * 1e9))
        broker, _ = await parts(plane)
        broker.services.quotas.replace([ClientQuota((("user", "alice"),), {"request_percentage": 50})])
        plane.network.loses_answer = lambda *_: True
        caller = Caller(ALICE)
        answer = await broker.answer(create_topics("a"), caller)
        assert answer.topics[0].error_code == ErrorCode.request_timed_out
        assert caller.muted_ms == []

    run(scenario)


def test_forwarded_requests_are_limited_in_size_and_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headwater.logtier.handlers.dispatcher.FORWARDED_BYTES_MAX", 2_000)

    async def scenario(plane: ControlPlane) -> None:
        broker, _ = await parts(plane)
        with pytest.raises(ProtocolViolationError, match="too large to be forwarded"):
            await broker.answer(create_topics(*(f"topic-{i}" for i in range(200))))
        held = asyncio.Event()
        plane.network.before = lambda *_: held.wait()
        asked = [asyncio.ensure_future(broker.answer(create_topics(f"a{i}"), Caller(ALICE))) for i in range(20)]
        await asyncio.sleep(1)
        assert len(plane.network.arrived) == forwarding.FORWARDED_MAX // 2
        other = asyncio.ensure_future(broker.answer(create_topics("bob"), Caller("User:bob")))
        await asyncio.sleep(1)
        assert len(plane.network.arrived) == forwarding.FORWARDED_MAX // 2 + 1
        held.set()
        for each in [*asked, other]:
            assert (await each).topics[0].error_code == 0

    run(scenario)


def test_long_requests_are_forwarded_and_answered_in_slices() -> None:
    async def scenario(plane: ControlPlane) -> None:
        broker, _ = await parts(plane)
        names = [f"{'x' * 200}-{i}" for i in range(400)]
        answer = await broker.answer(create_topics(*names))
        assert {topic.error_code for topic in answer.topics} == {0}
        assert [topic.name for topic in answer.topics] == names

    run(scenario)


def alter(*resources: tuple[int, str, str, str], version: int = 1) -> Request[Any]:
    return kio_request(
        44,
        version,
        {
            "resources": tuple(
                {
                    "resource_type": kind,
                    "resource_name": name,
                    "configs": ({"name": config, "config_operation": 0, "value": value},),
                }
                for kind, name, config, value in resources
            ),
            "validate_only": False,
        },
    )


def outcomes(answer: Any) -> dict[tuple[int, str], ErrorCode]:
    return {(each.resource_type, each.resource_name): each.error_code for each in answer.responses}


TOPIC, BROKER_CONFIG, LOGGER = 2, 4, 8


def test_a_brokers_own_configs_are_checked_where_they_apply_and_stored_by_the_controller() -> None:
    async def scenario(plane: ControlPlane) -> None:
        broker, controller = await parts(plane)
        own, other = str(broker.node.broker_id), str(controller.node.broker_id)
        # Only the broker knows its properties: the controller's own would permit neither.
        broker.node.cache._static_config = BrokerConfig.from_properties(
            {"node.id": own, "socket.request.max.bytes": 500_000_000}
        )
        config = "message.max.bytes"
        refused = await broker.answer(alter((BROKER_CONFIG, own, config, "600000000")))
        assert outcomes(refused) == {(BROKER_CONFIG, own): ErrorCode.invalid_request}
        assert plane.network.arrived == []
        assert outcomes(await broker.answer(alter((BROKER_CONFIG, own, config, "400000000")))) == {
            (BROKER_CONFIG, own): 0
        }
        assert plane.network.arrived == [ENVELOPE]
        for receiver, named in ((broker, other), (controller, own)):
            refused = await receiver.answer(alter((BROKER_CONFIG, named, config, "400000000")))
            assert outcomes(refused) == {(BROKER_CONFIG, named): ErrorCode.invalid_request}
            assert "Unexpected broker id" in refused.responses[0].error_message
        await plane.settled()
        assert {node.image.broker_configs.get(own, {}).get(config) for node in plane.nodes.values()} == {"400000000"}

    run(scenario)


def test_a_request_is_divided_between_the_broker_and_the_controller() -> None:
    async def scenario(plane: ControlPlane) -> None:
        broker, _ = await parts(plane)
        own = str(broker.node.broker_id)
        await broker.answer(create_topics("t"))
        logger = "headwater.logtier.tested"
        logging.getLogger(logger)
        answer = await broker.answer(
            alter(
                (LOGGER, own, logger, "DEBUG"),
                (TOPIC, "t", "retention.ms", "5"),
                (TOPIC, "missing", "retention.ms", "5"),
                (BROKER_CONFIG, own, "no.such.config", "5"),
            )
        )
        assert outcomes(answer) == {
            (LOGGER, own): 0,
            (TOPIC, "t"): 0,
            (TOPIC, "missing"): ErrorCode.unknown_topic_or_partition,
            (BROKER_CONFIG, own): ErrorCode.invalid_request,
        }
        assert logging.getLogger(logger).level == logging.DEBUG
        before = len(plane.network.arrived)
        alone = await broker.answer(alter((LOGGER, own, logger, "INFO")))
        assert outcomes(alone) == {(LOGGER, own): 0}
        assert len(plane.network.arrived) == before
        await plane.settled()
        assert broker.node.image.topics["t"].configs == {"retention.ms": "5"}

    run(scenario)


def test_a_client_without_the_right_learns_nothing_of_a_brokers_configs() -> None:
    async def scenario(plane: ControlPlane) -> None:
        broker, controller = await parts(plane)
        own = str(broker.node.broker_id)
        broker.services.authorizer = controller.services.authorizer = Recording(AclOperation.create)
        answer = await broker.answer(alter((BROKER_CONFIG, own, "no.such.config", "5")), Caller(ALICE))
        assert outcomes(answer) == {(BROKER_CONFIG, own): ErrorCode.cluster_authorization_failed}

    run(scenario)


def test_every_api_that_changes_metadata_is_forwarded() -> None:
    forwarded = {messages.api_name(key) for key, each in HANDLERS.items() if getattr(each, "IS_FORWARDED", False)}
    assert forwarded == {
        "alter_client_quotas",
        "alter_configs",
        "alter_partition_reassignments",
        "alter_user_scram_credentials",
        "create_acls",
        "create_partitions",
        "create_topics",
        "delete_acls",
        "delete_topics",
        "describe_quorum",
        "elect_leaders",
        "incremental_alter_configs",
        "list_partition_reassignments",
        "unregister_broker",
        "update_features",
    }


Names = st.text(st.characters(exclude_categories=["Cs"]), max_size=300)


@given(st.text("abcdefgUser", min_size=1), Names)
def test_principals_survive_the_way(kind: str, name: str) -> None:
    data = serialize_principal(f"{kind}:{name}")
    assert deserialize_principal(data) == f"{kind}:{name}"


@given(st.binary(max_size=40), st.integers(0, 40))
def test_what_is_no_principal_is_a_value_error(noise: bytes, cut: int) -> None:
    candidates: list[bytes] = [noise, serialize_principal(ALICE)[:cut], b"\0\0" + noise]
    read: Callable[[bytes], str] = deserialize_principal
    for data in candidates:
        try:
            principal = read(data)
        except ValueError:
            continue
        assert ":" in principal


def test_without_a_controller_requests_that_wait_for_a_turn_are_answered_as_soon_as_those_that_have_one() -> None:
    """More clients than turns: the second round would begin when their time is over."""

    async def scenario(plane: ControlPlane) -> None:
        broker, _ = await parts(plane)
        plane.model.kill()
        await plane.until(lambda: not plane.controllers)
        begun_s = asyncio.get_running_loop().time()
        callers = [Caller(f"User:{number}") for number in range(3 * forwarding.FORWARDED_MAX)]
        asked = [
            asyncio.ensure_future(broker.answer(create_topics(f"t{number}"), caller))
            for number, caller in enumerate(callers)
        ]
        answers = await asyncio.gather(*asked)
        assert {answer.topics[0].error_code for answer in answers} == {ErrorCode.request_timed_out}
        assert asyncio.get_running_loop().time() - begun_s <= forwarding.TIMEOUT_MS / 1000 + 1
        plane.model.restart()
        await plane.settled()
        assert (await broker.answer(create_topics("after"))).topics[0].error_code == 0

    run(scenario)
