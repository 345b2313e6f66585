"""Administrators' requests while ZooKeeper is away: each API answers an error that clients retry, in its own fields."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

import pytest

from headwater.logtier.client.connection import Request
from headwater.logtier.client.messages import kio_request
from headwater.logtier.handlers.registry import HANDLERS
from headwater.logtier.protocol.errors import ErrorCode
from headwater.logtier.protocol.messages import to_timedelta
from tests.control_plane import ControlNode, ControlPlane, run

TIMEOUT = to_timedelta(9_000)
#: What Kafka's clients of administrators ask again; before a new controller is known they look for it.
RETRIABLE = {ErrorCode.request_timed_out, ErrorCode.not_controller}

_ACL = {
    "resource_type": 2,
    "resource_name": "a",
    "resource_pattern_type": 3,
    "principal": "User:bob",
    "host": "*",
    "operation": 3,
    "permission_type": 3,
}
_ACL_FILTER = {
    "resource_type_filter": 2,
    "resource_name_filter": "a",
    "pattern_type_filter": 3,
    "principal_filter": None,
    "host_filter": None,
    "operation": 1,
    "permission_type": 1,
}
_UPSERTION = {"name": "bob", "mechanism": 1, "iterations": 4096, "salt": b"salt", "salted_password": b"p" * 32}
_CONFIG = {"name": "retention.ms", "value": "1000"}
#: A request of each API that would be executed, by key.
VALUES: dict[int, dict[str, Any]] = {
    19: {
        "topics": (
            {"name": "b", "num_partitions": 1, "replication_factor": 3, "assignments": (), "configs": ()},
            {"name": "c", "num_partitions": 1, "replication_factor": 3, "assignments": (), "configs": ()},
        ),
        "timeout": TIMEOUT,
        "validate_only": False,
    },
    20: {"topics": ({"name": "a", "topic_id": None},), "timeout": TIMEOUT},
    30: {"creations": (_ACL,)},
    31: {"filters": (_ACL_FILTER,)},
    33: {
        "resources": ({"resource_type": 2, "resource_name": "a", "configs": (_CONFIG,)},),
        "validate_only": False,
    },
    37: {"topics": ({"name": "a", "count": 2, "assignments": None},), "timeout": TIMEOUT, "validate_only": False},
    43: {"election_type": 0, "topic_partitions": ({"topic": "a", "partitions": (0,)},), "timeout": TIMEOUT},
    44: {
        "resources": ({"resource_type": 2, "resource_name": "a", "configs": ({**_CONFIG, "config_operation": 0},)},),
        "validate_only": False,
    },
    45: {
        "timeout": TIMEOUT,
        "allow_replication_factor_change": True,
        "topics": ({"name": "a", "partitions": ({"partition_index": 0, "replicas": (1, 2)},)},),
    },
    46: {"timeout": TIMEOUT, "topics": None},
    49: {
        "entries": (
            {
                "entity": ({"entity_type": "user", "entity_name": "bob"},),
                "ops": ({"key": "producer_byte_rate", "value": 1000.0, "remove": False},),
            },
        ),
        "validate_only": False,
    },
    51: {"deletions": (), "upsertions": (_UPSERTION,)},
    55: {"topics": ({"topic_name": "__cluster_metadata", "partitions": ({"partition_index": 0},)},)},
    57: {
        "timeout": TIMEOUT,
        "feature_updates": ({"feature": "transaction.version", "max_version_level": 1, "upgrade_type": 2},),
        "validate_only": False,
    },
    64: {"broker_id": 9},
}
FORWARDED = {key: handler for key, handler in HANDLERS.items() if getattr(handler, "IS_FORWARDED", False)}
#: Answered from the controller's image.
_READS = {46, 55}


def name_of(api_key: int) -> str:
    return HANDLERS[api_key].__name__.rsplit(".", 1)[-1]


class AllowAll:
    """An authorizer: without one there are no ACLs."""

    def is_authorized(self, *_: object) -> bool:
        return True

    def is_authorized_for_any(self, *_: object) -> bool:
        return True


def request_of(api_key: int) -> Request[Any]:
    return kio_request(api_key, HANDLERS[api_key].VERSIONS[1], VALUES[api_key])


def codes(answer: Any) -> Iterator[ErrorCode]:
    """All error codes of an answer, wherever its API has them."""
    if isinstance(answer, tuple):
        for each in answer:
            yield from codes(each)
    elif is_dataclass(answer):
        for field in fields(answer):
            value = getattr(answer, field.name)
            if field.name == "error_code":
                yield ErrorCode(int(value))
            else:
                yield from codes(value)


async def begin(plane: ControlPlane, *, is_controller: bool) -> tuple[ControlNode, ControlNode]:
    """A plane with a topic; the broker that is asked, and the controller."""
    controller = plane.controls[(await plane.controller()).broker_id]
    for control in plane.controls.values():
        control.services.authorizer = AllowAll()
    topic = {"name": "a", "num_partitions": 1, "replication_factor": 3, "assignments": (), "configs": ()}
    values = {"topics": (topic,), "timeout": TIMEOUT, "validate_only": False}
    created = await controller.answer(kio_request(19, 7, values))
    assert created.topics[0].error_code == 0
    await plane.settled()
    return controller if is_controller else (await plane.others())[0], controller


def test_every_forwarded_api_is_tried() -> None:
    assert VALUES.keys() == FORWARDED.keys()


@pytest.mark.parametrize("is_controller", [True, False], ids=["controller", "broker"])
@pytest.mark.parametrize("api_key", FORWARDED, ids=name_of)
def test_when_the_controller_has_stopped_the_answer_is_an_error_to_retry(api_key: int, is_controller: bool) -> None:
    async def scenario(plane: ControlPlane) -> None:
        asked, controller = await begin(plane, is_controller=is_controller)
        before = asked.node.image.topics
        plane.model.kill()
        await plane.until(lambda: not controller.node.controller.is_active)
        begun_s = asyncio.get_running_loop().time()
        answer = await asked.answer(request_of(api_key))
        assert asyncio.get_running_loop().time() - begun_s <= 26
        found = set(codes(answer))
        assert found
        assert found <= RETRIABLE
        plane.model.restart()
        await plane.settled()
        assert asked.node.image.topics == before

    run(scenario)


@pytest.mark.parametrize("api_key", sorted(FORWARDED.keys() - _READS), ids=name_of)
def test_a_controller_that_loses_zookeeper_in_the_middle_answers_an_error_to_retry(api_key: int) -> None:
    async def scenario(plane: ControlPlane) -> None:
        asked, _ = await begin(plane, is_controller=True)
        plane.model.kill()
        assert asked.node.controller.is_active
        answer = await asked.answer(request_of(api_key))
        found = set(codes(answer))
        assert found
        assert found <= RETRIABLE
        plane.model.restart()

    run(scenario)
