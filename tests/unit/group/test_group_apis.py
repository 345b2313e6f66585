"""The group APIs from a decoded request to an encoded response, in every version."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import MISSING, fields
from datetime import timedelta
from importlib import import_module
from inspect import isawaitable
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from kio.index import load_request_schema

from headwater.logtier.group.persistence.offsets import CommittedOffset
from headwater.logtier.handlers.context import RequestContext
from headwater.logtier.handlers.groups.coordinator_checks import check_coordinators, coordinator_error
from headwater.logtier.protocol import messages
from headwater.logtier.protocol.errors import ErrorCode, KafkaError
from headwater.logtier.protocol.topic_partition import TopicPartition

NAMES = [
    "find_coordinator",
    "join_group",
    "sync_group",
    "heartbeat",
    "leave_group",
    "offset_commit",
    "offset_fetch",
    "describe_groups",
    "list_groups",
    "delete_groups",
    "offset_delete",
    "consumer_group_heartbeat",
    "consumer_group_describe",
]
#: Kafka 4.1.1's answer to ApiVersions.
KAFKA_VERSIONS = {
    8: (2, 9),
    9: (1, 9),
    10: (0, 6),
    11: (0, 9),
    12: (0, 4),
    13: (0, 5),
    14: (0, 5),
    15: (0, 6),
    16: (0, 5),
    42: (0, 2),
    47: (0, 0),
    68: (0, 1),
    69: (0, 1),
}
HANDLERS = {name: import_module(f"headwater.logtier.handlers.groups.{name}") for name in NAMES}
EVERY_VERSION = [
    pytest.param(name, version, id=f"{name}-v{version}")
    for name, handler in HANDLERS.items()
    for version in range(handler.VERSIONS[0], handler.VERSIONS[1] + 1)
]

MakeWorld = Callable[..., Any]
SUBSCRIPTION = bytes.fromhex("0000 00000001 0001 74 ffffffff")


def some(**values: Any) -> Any:
    return SimpleNamespace(**values)


async def call(world: Any, name: str, version: int, request: Any, *, checks: Any = None) -> dict[str, Any]:
    """One request through its handler; its answer must be encodable in that version."""
    metadata = some(image=world.metadata.image, config=world.config)
    services = some(
        groups=world.groups, metadata=metadata, clock=world.clock, authorizer=None, leadership_checks=checks
    )
    handler = HANDLERS[name]
    context = RequestContext(services, handler.API_KEY, version, 1, "client", "10.0.0.1", "User:ANONYMOUS")
    result = handler.handle(request, context)
    answer: dict[str, Any] = await result if isawaitable(result) else result
    assert messages.encode_response(handler.API_KEY, version, answer)
    return answer


def in_world(make_world: MakeWorld, scenario: Callable[[Any], Awaitable[None]]) -> None:
    async def run() -> None:
        world = make_world()
        await world.groups.start()
        world.metadata.add("t")
        await world.groups.find("g")
        await scenario(world)
        await world.groups.stop()

    asyncio.run(run())


def empty_request(name: str, version: int) -> Any:
    """A request as a client might send it that leaves everything open."""
    handler = HANDLERS[name]
    kind: Any = load_request_schema(handler.API_KEY, version)
    values: dict[str, Any] = {}
    for each in fields(kind):
        if each.default is MISSING:
            text = str(each.type)
            if "tuple" in text:
                values[each.name] = ()
            elif "timedelta" in each.metadata["kafka_type"]:
                values[each.name] = timedelta(milliseconds=10_000)
            elif "bool" in text:
                values[each.name] = False
            else:
                values[each.name] = 0 if "int" in each.metadata["kafka_type"] else "g"
    return kind(**values)


def test_versions_are_kafkas() -> None:
    assert {handler.API_KEY: handler.VERSIONS for handler in HANDLERS.values()} == KAFKA_VERSIONS


@pytest.mark.parametrize(("name", "version"), EVERY_VERSION)
def test_every_version_is_answered(make_world: MakeWorld, name: str, version: int) -> None:
    async def scenario(world: Any) -> None:
        await call(world, name, version, empty_request(name, version))

    in_world(make_world, scenario)


@pytest.mark.parametrize("version", [3, 4])
def test_find_coordinator_names_the_broker(make_world: MakeWorld, version: int) -> None:
    async def scenario(world: Any) -> None:
        answer = await call(
            world, "find_coordinator", version, some(key="g", key_type=0, coordinator_keys=("g", "other"))
        )
        for found in answer.get("coordinators", [answer]):
            assert (found["node_id"], found["host"], found["port"]) == (1, "here", 9092)
            assert found["error_code"] is ErrorCode.none

    in_world(make_world, scenario)


@pytest.mark.parametrize(
    ("key_type", "error"),
    [
        (2, ErrorCode.unsupported_version),
        (9, ErrorCode.invalid_request),
    ],
)
def test_other_coordinators_are_refused_with_a_reason(make_world: MakeWorld, key_type: int, error: ErrorCode) -> None:
    async def scenario(world: Any) -> None:
        answer = await call(world, "find_coordinator", 6, some(key_type=key_type, coordinator_keys=("x",)))
        [found] = answer["coordinators"]
        assert found["error_code"] is error
        assert found["error_message"]

    in_world(make_world, scenario)


async def join(world: Any, version: int, member_id: str = "", **named: Any) -> dict[str, Any]:
    request = some(
        group_id="g",
        session_timeout=timedelta(seconds=10),
        rebalance_timeout=timedelta(seconds=60),
        member_id=member_id,
        group_instance_id=None,
        protocol_type="consumer",
        protocols=(some(name="range", metadata=SUBSCRIPTION),),
        reason="test",
    )
    for key, value in named.items():
        setattr(request, key, value)
    return await call(world, "join_group", version, request)


async def joined_and_synced(world: Any) -> dict[str, Any]:
    """One member of the group `g`, stable."""
    joined = await join(world, 3)
    answer = await call(
        world,
        "sync_group",
        5,
        some(
            group_id="g",
            generation_id=1,
            member_id=joined["member_id"],
            protocol_type="consumer",
            protocol_name="range",
            assignments=(some(member_id=joined["member_id"], assignment=b"all"),),
        ),
    )
    assert answer["error_code"] is ErrorCode.none
    assert answer["assignment"] == b"all"
    return joined


def test_a_new_member_is_given_its_id_first_from_version_4_on(make_world: MakeWorld) -> None:
    async def scenario(world: Any) -> None:
        refused = await join(world, 9)
        assert refused["error_code"] is ErrorCode.member_id_required
        answer = await join(world, 9, refused["member_id"])
        assert answer["error_code"] is ErrorCode.none
        assert answer["leader"] == answer["member_id"] == refused["member_id"]
        assert [member["metadata"] for member in answer["members"]] == [SUBSCRIPTION]

    in_world(make_world, scenario)


def test_a_sync_without_its_protocol_is_refused_from_version_5_on(make_world: MakeWorld) -> None:
    async def scenario(world: Any) -> None:
        request = some(group_id="g", protocol_type=None, protocol_name=None)
        answer = await call(world, "sync_group", 5, request)
        assert answer["error_code"] is ErrorCode.inconsistent_group_protocol

    in_world(make_world, scenario)


def test_heartbeat_and_leave(make_world: MakeWorld) -> None:
    async def scenario(world: Any) -> None:
        member_id = (await joined_and_synced(world))["member_id"]
        alive = some(group_id="g", member_id=member_id, generation_id=1, group_instance_id=None)
        assert await call(world, "heartbeat", 4, alive) == {"error_code": ErrorCode.none}
        leaving = some(
            group_id="g",
            members=(
                some(member_id=member_id, group_instance_id=None, reason="done"),
                some(member_id="", group_instance_id="nobody", reason=None),
            ),
        )
        answer = await call(world, "leave_group", 5, leaving)
        assert [each["error_code"] for each in answer["members"]] == [ErrorCode.none, ErrorCode.unknown_member_id]
        assert await call(world, "leave_group", 0, some(group_id="g", member_id=member_id)) == {
            "error_code": ErrorCode.unknown_member_id
        }

    in_world(make_world, scenario)


def commit_request(*partitions: Any, **named: Any) -> Any:
    request = some(
        group_id="g",
        generation_id_or_member_epoch=-1,
        member_id="",
        group_instance_id=None,
        topics=(some(name="t", partitions=partitions),),
    )
    for key, value in named.items():
        setattr(request, key, value)
    return request


def partition(index: int, offset: int = 5, metadata: str | None = "as agreed") -> Any:
    return some(partition_index=index, committed_offset=offset, committed_leader_epoch=2, committed_metadata=metadata)


def codes(answer: dict[str, Any]) -> list[ErrorCode]:
    return [each["error_code"] for topic in answer["topics"] for each in topic["partitions"]]


def test_a_commit_is_fetched_back_with_metadata_and_epoch(make_world: MakeWorld) -> None:
    async def scenario(world: Any) -> None:
        assert codes(await call(world, "offset_commit", 9, commit_request(partition(0), partition(1, 6, None)))) == [
            ErrorCode.none,
            ErrorCode.none,
        ]
        named = some(group_id="g", topics=(some(name="t", partition_indexes=(0, 1, 2)),))
        answer = await call(world, "offset_fetch", 5, named)
        assert [
            (each["committed_offset"], each["committed_leader_epoch"], each["metadata"])
            for each in answer["topics"][0]["partitions"]
        ] == [(5, 2, "as agreed"), (6, 2, ""), (-1, -1, "")]
        answer = await call(
            world, "offset_fetch", 9, some(groups=(some(group_id="g", topics=None), some(group_id="x", topics=None)))
        )
        first, second = answer["groups"]
        assert [each["partition_index"] for each in first["topics"][0]["partitions"]] == [0, 1]
        assert second == {"group_id": "x", "topics": [], "error_code": ErrorCode.none}

    in_world(make_world, scenario)


@pytest.mark.parametrize("version", [5, 9])
@pytest.mark.parametrize("are_named", [True, False])
def test_an_offset_of_a_deleted_topic_is_not_told_for_another_of_its_name(
    make_world: MakeWorld, version: int, are_named: bool
) -> None:
    """The coordinator deletes such offsets, and may have the new topic in its image before."""

    async def scenario(world: Any) -> None:
        key = {"member_id": "", "group_instance_id": None, "generation_id": -1}
        commits = {
            TopicPartition("t", 0): CommittedOffset(5, topic_id=UUID(int=99)),
            TopicPartition("t", 1): CommittedOffset(6, topic_id=world.metadata.image.topic("t").topic_id),
            TopicPartition("t", 2): CommittedOffset(7),
        }
        await world.groups.commit_offsets("g", commits=commits, **key)
        topics = (some(name="t", partition_indexes=(0, 1, 2)),) if are_named else None
        group = some(group_id="g", topics=topics)
        answer = await call(world, "offset_fetch", version, some(groups=(group,)) if version > 7 else group)
        [topic] = answer["groups"][0]["topics"] if version > 7 else answer["topics"]
        found = {each["partition_index"]: each["committed_offset"] for each in topic["partitions"]}
        assert found == ({0: -1} if are_named else {}) | {1: 6, 2: 7}

    in_world(make_world, scenario)


@pytest.mark.parametrize("version", range(1, 10))
@pytest.mark.parametrize("refusal", [ErrorCode.not_leader_or_follower, ErrorCode.request_timed_out])
def test_offsets_of_a_coordinator_that_nobody_confirms_are_not_told(
    make_world: MakeWorld, version: int, refusal: ErrorCode
) -> None:
    """Consumers ask again for an unstable offset, and not after every other error."""
    checked: list[TopicPartition] = []

    async def check(key: TopicPartition) -> None:
        checked.append(key)
        raise KafkaError(refusal, "another broker leads")

    async def scenario(world: Any) -> None:
        assert codes(await call(world, "offset_commit", 9, commit_request(partition(0)))) == [ErrorCode.none]
        topics = (some(name="t", partition_indexes=(0,)),)
        group = some(group_id="g", topics=topics)
        request = group if version < 8 else some(groups=(group, group))
        answer = await call(world, "offset_fetch", version, request, checks=some(check=check))
        for each in answer.get("groups", [answer]):
            [told] = [part for topic in each["topics"] for part in topic["partitions"]] or [{"error_code": None}]
            if version == 1:
                assert told["error_code"] is ErrorCode.not_coordinator
            elif version < 7:
                assert each["error_code"] is ErrorCode.not_coordinator
            else:
                assert each["error_code"] is ErrorCode.none
                assert told["error_code"] is ErrorCode.unstable_offset_commit
        assert len(checked) == 1, "once for groups of one partition"
        if version > 1:
            all_of_them = some(group_id="g", topics=None)
            request = all_of_them if version < 8 else some(groups=(all_of_them,))
            answer = await call(world, "offset_fetch", version, request, checks=some(check=check))
            [each] = answer.get("groups", [answer])
            assert each["error_code"] is ErrorCode.not_coordinator

    in_world(make_world, scenario)


def test_slices_of_a_long_request_check_the_coordinator_once(make_world: MakeWorld) -> None:
    checked: list[TopicPartition] = []

    async def check(key: TopicPartition) -> None:
        checked.append(key)

    async def scenario(world: Any) -> None:
        services = some(groups=world.groups, authorizer=None, leadership_checks=some(check=check))
        context = RequestContext(services, 9, 9, 1, "client", "10.0.0.1", "User:ANONYMOUS")
        for _ in range(3):
            await check_coordinators(["g", "h"], context)
        assert sorted(checked) == sorted({await of(world, "g"), await of(world, "h")})
        assert coordinator_error("g", context) is None
        context.checked_leaderships = {}  # it has been loaded after the check
        error = coordinator_error("g", context)
        assert error is not None
        assert error.code is ErrorCode.coordinator_load_in_progress

    async def of(world: Any, group: str) -> TopicPartition:
        found: TopicPartition = await world.groups.offsets_partition(group)
        return found

    in_world(make_world, scenario)


def test_bad_partitions_of_a_commit_are_refused_one_by_one(make_world: MakeWorld) -> None:
    async def scenario(world: Any) -> None:
        request = commit_request(partition(0), partition(99), partition(-1), partition(1, metadata="x" * 4097))
        request.topics += (some(name="unknown", partitions=(partition(0),)),)
        assert codes(await call(world, "offset_commit", 9, request)) == [
            ErrorCode.none,
            ErrorCode.unknown_topic_or_partition,
            ErrorCode.unknown_topic_or_partition,
            ErrorCode.offset_metadata_too_large,
            ErrorCode.unknown_topic_or_partition,
        ]

    in_world(make_world, scenario)


def test_a_commit_of_another_generation_is_refused(make_world: MakeWorld) -> None:
    async def scenario(world: Any) -> None:
        request = commit_request(partition(0), generation_id_or_member_epoch=3)
        assert codes(await call(world, "offset_commit", 9, request)) == [ErrorCode.group_id_not_found]
        assert codes(await call(world, "offset_commit", 8, request)) == [ErrorCode.illegal_generation]
        assert (await call(world, "list_groups", 5, some(states_filter=(), types_filter=())))["groups"] == []

    in_world(make_world, scenario)


def test_old_clients_may_ask_for_a_retention(make_world: MakeWorld) -> None:
    async def scenario(world: Any) -> None:
        await call(world, "offset_commit", 2, commit_request(partition(0), retention_time=timedelta(milliseconds=7)))
        assert world.groups.committed("g").get(TopicPartition("t", 0)) == CommittedOffset(
            5,
            metadata="as agreed",
            commit_timestamp_ms=world.clock.ms,
            expire_timestamp_ms=world.clock.ms + 7,
            topic_id=world.metadata.image.topic("t").topic_id,
        )

    in_world(make_world, scenario)


@pytest.mark.parametrize(("version", "group_error"), [(1, False), (2, True), (8, True)])
def test_a_group_that_is_elsewhere_is_told_where_the_version_has_room(
    make_world: MakeWorld, version: int, group_error: bool
) -> None:
    async def scenario(world: Any) -> None:
        world.metadata.remove("__consumer_offsets")
        topics = (some(name="t", partition_indexes=(0,)),)
        request = some(group_id="g", topics=topics, groups=(some(group_id="g", topics=topics),))
        answer = await call(world, "offset_fetch", version, request)
        if group_error:
            assert answer.get("groups", [answer])[0]["error_code"] is ErrorCode.not_coordinator
        else:
            assert codes(answer) == [ErrorCode.not_coordinator]

    in_world(make_world, scenario)


def test_groups_are_described_and_listed(make_world: MakeWorld) -> None:
    async def scenario(world: Any) -> None:
        joined = await joined_and_synced(world)
        request = some(groups=("g", "missing"), include_authorized_operations=True)
        found, missing = (await call(world, "describe_groups", 6, request))["groups"]
        assert (found["group_state"], found["protocol_type"], found["protocol_data"]) == ("Stable", "consumer", "range")
        assert found["members"] == [
            {
                "member_id": joined["member_id"],
                "group_instance_id": None,
                "client_id": "client",
                "client_host": "/10.0.0.1",
                "member_metadata": SUBSCRIPTION,
                "member_assignment": b"all",
            }
        ]
        assert missing["error_code"] is ErrorCode.group_id_not_found
        _, missing = (await call(world, "describe_groups", 5, request))["groups"]
        assert (missing["error_code"], missing["group_state"]) == (ErrorCode.none, "Dead")
        for states, types, count in [
            ((), (), 1),
            (("STABLE",), ("Classic",), 1),
            (("Empty",), (), 0),
            ((), ("consumer",), 0),
        ]:
            answer = await call(world, "list_groups", 5, some(states_filter=states, types_filter=types))
            assert len(answer["groups"]) == count

    in_world(make_world, scenario)


def test_groups_and_offsets_are_deleted(make_world: MakeWorld) -> None:
    async def scenario(world: Any) -> None:
        await call(world, "offset_commit", 9, commit_request(partition(0), partition(1)))
        request = some(
            group_id="g",
            topics=(some(name="t", partitions=(some(partition_index=0), some(partition_index=9))),),
        )
        assert codes(await call(world, "offset_delete", 0, request)) == [
            ErrorCode.none,
            ErrorCode.unknown_topic_or_partition,
        ]
        assert len(world.groups.committed("g")) == 1
        answer = await call(world, "delete_groups", 2, some(groups_names=("g", "g", "missing")))
        assert [each["error_code"] for each in answer["results"]] == [ErrorCode.none, ErrorCode.group_id_not_found]
        answer = await call(world, "offset_delete", 0, request)
        assert answer["error_code"] is ErrorCode.group_id_not_found
        answer = await call(world, "offset_delete", 0, some(group_id="", topics=()))
        assert answer["error_code"] is ErrorCode.invalid_group_id

    in_world(make_world, scenario)


def heartbeat_request(**named: Any) -> Any:
    """A ConsumerGroupHeartbeat that joins; the version decides what it may leave out."""
    values = {
        "group_id": "g",
        "member_id": "member-a",
        "member_epoch": 0,
        "instance_id": None,
        "rack_id": None,
        "rebalance_timeout": timedelta(minutes=1),
        "subscribed_topic_names": ("t",),
        "subscribed_topic_regex": None,
        "server_assignor": None,
        "topic_partitions": (),
    }
    return some(**{**values, **named})


@pytest.mark.parametrize(
    ("named", "error", "message"),
    [
        ({"member_id": ""}, ErrorCode.invalid_request, "MemberId can't be empty."),
        ({"group_id": ""}, ErrorCode.invalid_request, "GroupId can't be empty."),
        ({"instance_id": ""}, ErrorCode.invalid_request, "InstanceId can't be empty."),
        ({"rack_id": ""}, ErrorCode.invalid_request, "RackId can't be empty."),
        ({"rebalance_timeout": timedelta(milliseconds=-1)}, ErrorCode.invalid_request, "RebalanceTimeoutMs must"),
        ({"topic_partitions": None}, ErrorCode.invalid_request, "TopicPartitions must be empty"),
        ({"subscribed_topic_names": None}, ErrorCode.invalid_request, "Either SubscribedTopicNames or"),
        ({"member_epoch": -2}, ErrorCode.invalid_request, "InstanceId can't be null."),
        ({"member_epoch": -3}, ErrorCode.invalid_request, "MemberEpoch is invalid."),
        ({"server_assignor": "sticky"}, ErrorCode.unsupported_assignor, "Supported assignors: uniform, range."),
        ({"subscribed_topic_regex": "["}, ErrorCode.invalid_regular_expression, "missing ] in `[`."),
        ({"member_epoch": 3}, ErrorCode.group_id_not_found, "Consumer group g not found."),
        ({"member_epoch": -1}, ErrorCode.group_id_not_found, "Group g not found."),
        ({"client_id": "x" * 40_000, "rack_id": "y" * 40_000}, ErrorCode.invalid_request, "A name has at most"),
    ],
)
def test_a_heartbeat_is_refused_as_in_kafka(
    make_world: MakeWorld, named: dict[str, Any], error: ErrorCode, message: str
) -> None:
    async def scenario(world: Any) -> None:
        answer = await call(world, "consumer_group_heartbeat", 1, heartbeat_request(**named))
        assert answer["error_code"] is error
        assert message in answer["error_message"]

    in_world(make_world, scenario)


def test_members_are_given_ids_in_version_0_only(make_world: MakeWorld) -> None:
    async def scenario(world: Any) -> None:
        answer = await call(world, "consumer_group_heartbeat", 0, heartbeat_request(member_id=""))
        assert len(answer["member_id"]) == 22
        assert answer["heartbeat_interval"] == 5000

    in_world(make_world, scenario)


def test_a_consumer_group_is_described_and_listed_as_one(make_world: MakeWorld) -> None:
    async def scenario(world: Any) -> None:
        joined = await call(world, "consumer_group_heartbeat", 1, heartbeat_request(rack_id="eu"))
        topic_id = world.metadata.image.topics["t"].topic_id
        assert joined["assignment"] == {"topic_partitions": [{"topic_id": topic_id, "partitions": [0, 1, 2]}]}
        request = some(group_ids=("g", "missing", ""), include_authorized_operations=True)
        found, missing, unnamed = (await call(world, "consumer_group_describe", 1, request))["groups"]
        assert (found["group_state"], found["group_epoch"], found["assignment_epoch"]) == ("Stable", 1, 1)
        assert found["assignor_name"] == "uniform"
        assert found["authorized_operations"] > 0
        [member] = found["members"]
        assert (member["member_id"], member["rack_id"], member["member_type"]) == ("member-a", "eu", 1)
        assert member["assignment"] == member["target_assignment"]
        assert member["assignment"]["topic_partitions"][0]["topic_name"] == "t"
        assert (missing["error_code"], missing["error_message"]) == (
            ErrorCode.group_id_not_found,
            "Group missing not found.",
        )
        assert unnamed["error_code"] is ErrorCode.invalid_group_id

        classic = some(groups=("g",), include_authorized_operations=False)
        [described] = (await call(world, "describe_groups", 6, classic))["groups"]
        assert (described["error_code"], described["error_message"]) == (
            ErrorCode.group_id_not_found,
            "Group g is not a classic group.",
        )
        for types, states, listed in (
            ((), (), ["g"]),
            (("Consumer",), ("stable",), ["g"]),
            (("classic",), (), []),
            ((), ("empty",), []),
        ):
            answer = await call(world, "list_groups", 5, some(states_filter=states, types_filter=types))
            assert [group["group_id"] for group in answer["groups"]] == listed

    in_world(make_world, scenario)


def test_a_member_fetches_offsets_by_its_epoch(make_world: MakeWorld) -> None:
    def asking(member_id: str | None, epoch: int) -> Any:
        topics = (some(name="t", partition_indexes=(0,)),)
        return some(groups=(some(group_id="g", topics=topics, member_id=member_id, member_epoch=epoch),))

    async def scenario(world: Any) -> None:
        await call(world, "consumer_group_heartbeat", 1, heartbeat_request())
        for member_id, epoch, error in (
            ("member-a", 1, ErrorCode.none),
            (None, -1, ErrorCode.none),
            ("member-a", 2, ErrorCode.stale_member_epoch),
            ("member-b", 1, ErrorCode.unknown_member_id),
        ):
            [group] = (await call(world, "offset_fetch", 9, asking(member_id, epoch)))["groups"]
            assert group["error_code"] is error

    in_world(make_world, scenario)
