"""Who is refused what, by every API that has something to refuse: over a real controller and a real authorizer."""

import asyncio
import inspect
import logging
import random
import uuid
from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from kio.index import load_response_schema
from kio.serial import entity_reader

from headwater.logtier.config import BrokerConfig
from headwater.logtier.config.security import STANDARD_AUTHORIZER
from headwater.logtier.controller.bootstrap import bootstrap
from headwater.logtier.controller.controller import Controller, NewTopic
from headwater.logtier.handlers.context import DENIALS_LOGGED_MAX, RequestContext, Services
from headwater.logtier.handlers.quotas.configured_quotas import configured_quotas
from headwater.logtier.handlers.registry import HANDLERS
from headwater.logtier.metadata.acl_follower import configured_authorizer
from headwater.logtier.metadata.follower import MetadataFollower
from headwater.logtier.metadata.image import MetadataCache
from headwater.logtier.metadata.local import LocalMetadataStore
from headwater.logtier.protocol import messages
from headwater.logtier.protocol.errors import ErrorCode, KafkaError
from headwater.logtier.protocol.refusals import refusal
from headwater.logtier.runtime.clock import SystemClock
from headwater.logtier.runtime.disk import RealDisk
from headwater.logtier.runtime.random_bytes import system_random_bytes
from headwater.logtier.security.acls import AclBinding, PatternType, PermissionType
from headwater.logtier.security.operations import CLUSTER_NAME, AclOperation, ResourceType

HOST = "10.0.0.1"
SECOND = timedelta(seconds=1)
BY_NAME = {module.__name__.rpartition(".")[2]: module for module in HANDLERS.values()}


def some(**values: Any) -> Any:
    return SimpleNamespace(**values)


class Untouchable:
    """Stands for a part of the broker that a refused request must not come to."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"a request that had to be refused came to {name}")


class World:
    """A controller on a folder, and a client of it."""

    def __init__(self, services: Services, controller: Controller) -> None:
        self.services = services
        self.controller = controller

    async def send(self, name: str, version: int, request: Any, *, user: str = "alice") -> Any:
        """One request through its handler; the answer as a client of that version reads it."""
        handler = BY_NAME[name]
        context = RequestContext(self.services, handler.API_KEY, version, 1, "client", HOST, f"User:{user}")
        try:
            answer = handler.handle(request, context)
            if inspect.isawaitable(answer):
                answer = await answer
        except KafkaError as error:
            answer = refusal(handler.API_KEY, version, error.code, error.message)
        body = (
            messages.encode_response(handler.API_KEY, version, answer)
            if isinstance(answer, Mapping)
            else bytes(answer[1])
        )
        response, size = entity_reader(load_response_schema(handler.API_KEY, version))(body, 0)
        assert size == len(body)
        return response

    async def allow(
        self,
        operation: AclOperation,
        kind: ResourceType,
        name: str = CLUSTER_NAME,
        *,
        user: str = "alice",
        pattern: PatternType = PatternType.literal,
        deny: bool = False,
    ) -> None:
        permission = PermissionType.deny if deny else PermissionType.allow
        binding = AclBinding(kind, name, pattern, f"User:{user}", "*", operation, permission)
        assert await self.controller.create_acls([binding]) == [None]


def run(directory: Path, scenario: Callable[[World], Awaitable[None]], **properties: object) -> None:
    async def main() -> None:
        given = {"authorizer.class.name": STANDARD_AUTHORIZER, "super.users": "User:admin"}
        given |= {name.replace("_", "."): str(value) for name, value in properties.items()}
        config = BrokerConfig.from_properties(given)
        store = LocalMetadataStore(str(directory), RealDisk())
        await store.start()
        cache = MetadataCache(config)
        follower = MetadataFollower(store, cache)
        controller = Controller(config, SystemClock(), random.Random(1), store, follower)
        await bootstrap(store, random.Random(1), system_random_bytes)
        await follower.start()
        await controller.start()
        await controller.register_broker(1, "here", 9092)
        untouchable = cast(Any, Untouchable())
        services = Services(
            SystemClock(),
            random.Random(1),
            cache,
            controller,
            cast(Any, some(has_offline=False, offline_replicas=lambda topic, index: ())),
            untouchable,
            untouchable,
            untouchable,
            untouchable,
            authorizer=configured_authorizer(cache),
            quotas=configured_quotas(cache),
        )
        try:
            await scenario(World(services, controller))
        finally:
            await controller.stop()
            await follower.stop()
            await store.close()

    asyncio.run(main())


def creation(name: str, operation: AclOperation = AclOperation.read, **other: Any) -> Any:
    fields = {
        "resource_type": ResourceType.topic,
        "resource_name": name,
        "resource_pattern_type": PatternType.literal,
        "principal": "User:alice",
        "host": "*",
        "operation": operation,
        "permission_type": PermissionType.allow,
    }
    return some(**fields | other)


def wanted(name: str | None = None, **other: Any) -> Any:
    fields = {
        "resource_type_filter": ResourceType.any,
        "resource_name_filter": name,
        "pattern_type_filter": PatternType.any,
        "principal_filter": None,
        "host_filter": None,
        "operation": AclOperation.any,
        "permission_type": PermissionType.any,
    }
    return some(**fields | other)


@pytest.mark.parametrize("version", [1, 2, 3])
def test_lists_are_made_found_and_removed(tmp_path: Path, version: int) -> None:
    async def scenario(world: World) -> None:
        made = await world.send(
            "create_acls",
            version,
            some(creations=[creation("orders"), creation(""), creation("orders")]),
            user="admin",
        )
        codes = [result.error_code for result in made.results]
        assert codes == [ErrorCode.none, ErrorCode.invalid_request, ErrorCode.none]
        found = await world.send("describe_acls", version, wanted("orders"), user="admin")
        [resource] = found.resources
        assert (resource.resource_type, resource.resource_name, resource.pattern_type) == (2, "orders", 3)
        [acl] = resource.acls
        assert (acl.principal, acl.host, acl.operation, acl.permission_type) == ("User:alice", "*", 3, 3)
        filters = [wanted("other"), wanted("orders"), wanted(resource_type_filter=99)]
        removed = await world.send("delete_acls", version, some(filters=filters), user="admin")
        assert [len(result.matching_acls) for result in removed.filter_results] == [0, 1, 0]
        assert removed.filter_results[2].error_code == ErrorCode.invalid_request
        assert not (await world.send("describe_acls", version, wanted(), user="admin")).resources

    run(tmp_path, scenario)


def test_lists_need_the_right_to_see_and_to_alter_the_cluster(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        denied = ErrorCode.cluster_authorization_failed
        assert (await world.send("describe_acls", 3, wanted())).error_code == denied
        made = await world.send("create_acls", 3, some(creations=[creation("a"), creation("b")]))
        assert [result.error_code for result in made.results] == [denied, denied]
        removed = await world.send("delete_acls", 3, some(filters=[wanted()]))
        assert [result.error_code for result in removed.filter_results] == [denied]
        await world.allow(AclOperation.alter, ResourceType.cluster)
        assert (await world.send("describe_acls", 3, wanted())).error_code == ErrorCode.none

    run(tmp_path, scenario)


def test_without_an_authorizer_there_are_no_lists(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        disabled = ErrorCode.security_disabled
        assert (await world.send("describe_acls", 3, wanted())).error_code == disabled
        made = await world.send("create_acls", 3, some(creations=[creation("a")]))
        assert [result.error_code for result in made.results] == [disabled]
        removed = await world.send("delete_acls", 3, some(filters=[wanted()]))
        assert [result.error_code for result in removed.filter_results] == [disabled]

    run(tmp_path, scenario, authorizer_class_name="")


def test_lists_hold_after_a_restart(tmp_path: Path) -> None:
    async def before(world: World) -> None:
        await world.allow(AclOperation.describe, ResourceType.topic, "a/b\n'c'*")

    async def after(world: World) -> None:
        assert world.services.authorizer is not None
        assert len(world.services.metadata.image.acls) == 1
        args = ("User:alice", HOST, AclOperation.describe, ResourceType.topic)
        assert world.services.authorizer.is_authorized(*args, "a/b\n'c'*")
        assert not world.services.authorizer.is_authorized(*args, "other")

    run(tmp_path, before)
    run(tmp_path, after)


def metadata_request(*names: str, create: bool = False, operations: bool = False) -> Any:
    return some(
        topics=tuple(some(name=name, topic_id=None) for name in names) or None,
        allow_auto_topic_creation=create,
        include_topic_authorized_operations=operations,
    )


@pytest.mark.parametrize("version", [4, 9, 12])
def test_whoever_may_not_describe_a_topic_is_not_told_whether_it_exists(tmp_path: Path, version: int) -> None:
    async def scenario(world: World) -> None:
        await world.controller.create_topics([NewTopic("there")])
        response = await world.send("metadata", version, metadata_request("there", "missing", create=True))
        there, missing = response.topics
        assert (there.name, missing.name) == ("there", "missing")
        for field in ("error_code", "is_internal", "partitions", "topic_id", "topic_authorized_operations"):
            assert getattr(there, field, None) == getattr(missing, field, None)
        assert there.error_code == ErrorCode.topic_authorization_failed
        assert (await world.send("metadata", version, metadata_request())).topics == ()
        assert world.services.metadata.image.topic("missing") is None

    run(tmp_path, scenario)


def test_a_missing_topic_is_created_for_those_who_may(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        await world.allow(AclOperation.describe, ResourceType.topic, "*")
        [topic] = (await world.send("metadata", 12, metadata_request("new", create=True))).topics
        assert topic.error_code == ErrorCode.topic_authorization_failed
        await world.allow(AclOperation.create, ResourceType.topic, "new")
        [topic] = (await world.send("metadata", 12, metadata_request("new", create=True))).topics
        assert topic.error_code == ErrorCode.none
        assert topic.topic_id

    run(tmp_path, scenario)


def test_a_kept_answer_is_nobody_elses(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        await world.controller.create_topics([NewTopic("a"), NewTopic("b")])
        await world.allow(AclOperation.read, ResourceType.topic, "a")
        await world.allow(AclOperation.read, ResourceType.topic, "b", user="bob")
        for user, name in (("alice", "a"), ("bob", "b"), ("alice", "a"), ("nobody", None)):
            topics = (await world.send("metadata", 12, metadata_request(), user=user)).topics
            assert [topic.name for topic in topics] == ([name] if name else [])
        await world.allow(AclOperation.describe, ResourceType.topic, "a", deny=True)
        assert (await world.send("metadata", 12, metadata_request())).topics == ()

    run(tmp_path, scenario)


def test_what_a_client_may_do_is_told_bit_by_bit(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        await world.controller.create_topics([NewTopic("a")])
        await world.allow(AclOperation.read, ResourceType.topic, "a")
        await world.allow(AclOperation.alter_configs, ResourceType.topic, "a")
        [topic] = (await world.send("metadata", 12, metadata_request("a", operations=True))).topics
        assert topic.topic_authorized_operations == 1 << 3 | 1 << 8 | 1 << 10 | 1 << 11
        cluster = some(include_cluster_authorized_operations=True, endpoint_type=1)
        assert (await world.send("describe_cluster", 1, cluster)).cluster_authorized_operations == 0
        everything = (await world.send("describe_cluster", 1, cluster, user="admin")).cluster_authorized_operations
        assert everything == sum(1 << each for each in (5, 7, 8, 9, 10, 11, 12))

    run(tmp_path, scenario)


def test_topics_are_created_grown_and_deleted_by_those_who_may_each_by_itself(tmp_path: Path) -> None:
    def new(*names: str) -> Any:
        topics = [some(name=each, num_partitions=1, replication_factor=1, assignments=(), configs=()) for each in names]
        return some(topics=topics, validate_only=False)

    async def scenario(world: World) -> None:
        denied, none = ErrorCode.topic_authorization_failed, ErrorCode.none
        await world.allow(AclOperation.create, ResourceType.topic, "mine-", pattern=PatternType.prefixed)
        made = {topic.name: topic for topic in (await world.send("create_topics", 7, new("mine-1", "theirs"))).topics}
        assert (made["mine-1"].error_code, made["theirs"].error_code) == (none, denied)
        # Its configs are told to those only who may describe them.
        assert made["mine-1"].topic_config_error_code == denied
        assert (made["mine-1"].num_partitions, made["mine-1"].configs) == (-1, ())
        await world.controller.create_topics([NewTopic("theirs")])

        await world.allow(AclOperation.alter, ResourceType.topic, "mine-1")
        grow = some(
            topics=[some(name=name, count=2, assignments=None) for name in ("mine-1", "theirs", "missing")],
            validate_only=False,
        )
        grown = {each.name: each.error_code for each in (await world.send("create_partitions", 3, grow)).results}
        assert grown == {"mine-1": none, "theirs": denied, "missing": denied}

        delete = some(topic_names=("mine-1", "theirs", "missing"))
        deleted = {each.name: each.error_code for each in (await world.send("delete_topics", 5, delete)).responses}
        assert deleted == {"mine-1": denied, "theirs": denied, "missing": denied}
        await world.allow(AclOperation.delete, ResourceType.topic, "mine-1")
        await world.allow(AclOperation.describe, ResourceType.topic, "missing")
        deleted = {each.name: each.error_code for each in (await world.send("delete_topics", 5, delete)).responses}
        assert deleted == {"mine-1": none, "theirs": denied, "missing": ErrorCode.unknown_topic_or_partition}

    run(tmp_path, scenario)


def test_a_topic_that_is_deleted_by_its_id_is_named_to_those_who_may_describe_it(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        await world.controller.create_topics([NewTopic("a")])
        topic = world.services.metadata.image.topic("a")
        assert topic is not None
        request = some(topics=[some(name=None, topic_id=topic.topic_id), some(name=None, topic_id=uuid.UUID(int=9))])
        codes = (ErrorCode.topic_authorization_failed, ErrorCode.unknown_topic_id)
        for name in (None, "a"):
            hidden, missing = (await world.send("delete_topics", 6, request)).responses
            assert (hidden.error_code, missing.error_code) == codes
            assert hidden.name == name
            await world.allow(AclOperation.describe, ResourceType.topic, "a")

    run(tmp_path, scenario)


def test_configs_are_seen_and_altered_by_those_who_may(tmp_path: Path) -> None:
    kinds = {2: ErrorCode.topic_authorization_failed, 4: ErrorCode.cluster_authorization_failed}

    async def scenario(world: World) -> None:
        await world.controller.create_topics([NewTopic("1")])
        resources = [some(resource_type=kind, resource_name="1", configuration_keys=(), configs=()) for kind in kinds]
        described = await world.send("describe_configs", 4, some(resources=resources, include_synonyms=False))
        assert {each.resource_type: each.error_code for each in described.results} == kinds
        for name in ("alter_configs", "incremental_alter_configs"):
            altered = await world.send(name, 1, some(resources=resources, validate_only=False))
            assert {each.resource_type: each.error_code for each in altered.responses} == kinds
        await world.allow(AclOperation.alter_configs, ResourceType.topic, "1")
        altered = await world.send("incremental_alter_configs", 1, some(resources=resources, validate_only=False))
        assert {each.resource_type: each.error_code for each in altered.responses} == kinds | {2: ErrorCode.none}
        described = await world.send("describe_configs", 4, some(resources=resources, include_synonyms=False))
        assert {each.resource_type: each.error_code for each in described.results} == kinds | {2: ErrorCode.none}

    run(tmp_path, scenario)


#: Requests of groups that must not come to the coordinator; where the code of the refusal stands in the answer.
OF_GROUPS: dict[str, tuple[int, Any, Callable[[Any], Any]]] = {
    "join_group": (
        5,
        some(
            group_id="g", session_timeout=SECOND, rebalance_timeout=SECOND, member_id="", protocol_type="", protocols=()
        ),
        lambda answer: answer.error_code,
    ),
    "sync_group": (
        5,
        some(
            group_id="g",
            generation_id=1,
            member_id="m",
            protocol_type="consumer",
            protocol_name="range",
            assignments=(),
        ),
        lambda answer: answer.error_code,
    ),
    "heartbeat": (4, some(group_id="g", member_id="m", generation_id=1), lambda answer: answer.error_code),
    "leave_group": (4, some(group_id="g", members=()), lambda answer: answer.error_code),
    "offset_delete": (0, some(group_id="g", topics=()), lambda answer: answer.error_code),
    "delete_groups": (2, some(groups_names=("g",)), lambda answer: answer.results[0].error_code),
    "describe_groups": (5, some(groups=("g",)), lambda answer: answer.groups[0].error_code),
    "offset_fetch": (8, some(groups=(some(group_id="g", topics=None),)), lambda answer: answer.groups[0].error_code),
    "find_coordinator": (
        4,
        some(key_type=0, coordinator_keys=("g",)),
        lambda answer: answer.coordinators[0].error_code,
    ),
    "consumer_group_describe": (
        0,
        some(group_ids=("g",), include_authorized_operations=False),
        lambda answer: answer.groups[0].error_code,
    ),
}


@pytest.mark.parametrize("name", list(OF_GROUPS))
def test_a_group_is_closed_to_those_who_have_no_right_to_it(tmp_path: Path, name: str) -> None:
    version, request, code = OF_GROUPS[name]

    async def scenario(world: World) -> None:
        assert code(await world.send(name, version, request)) == ErrorCode.group_authorization_failed

    run(tmp_path, scenario)


def test_idempotent_producers_need_the_right_to_write_something(tmp_path: Path) -> None:
    request = some(transactional_id=None, producer_id=-1, producer_epoch=-1, transaction_timeout=SECOND)

    async def scenario(world: World) -> None:
        refused = await world.send("init_producer_id", 4, request)
        assert refused.error_code == ErrorCode.cluster_authorization_failed
        await world.allow(AclOperation.write, ResourceType.topic, "a")
        assert (await world.send("init_producer_id", 4, request)).error_code == ErrorCode.none
        await world.allow(AclOperation.idempotent_write, ResourceType.cluster, user="bob")
        assert (await world.send("init_producer_id", 4, request, user="bob")).error_code == ErrorCode.none
        transactional = some(**vars(request) | {"transactional_id": "t"})
        refused = await world.send("init_producer_id", 4, transactional)
        assert refused.error_code == ErrorCode.transactional_id_authorization_failed

    run(tmp_path, scenario)


def test_each_denial_of_a_request_is_logged_once_and_not_without_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(world: World) -> None:
        with caplog.at_level(logging.INFO, "kafka.authorizer.logger"):
            await world.send("metadata", 12, metadata_request("a", "b"))
            assert len(caplog.messages) == 2
            assert "Principal = User:alice is Denied operation = DESCRIBE from host = 10.0.0.1" in caplog.messages[0]
            caplog.clear()
            await world.send("metadata", 12, metadata_request(*(str(number) for number in range(1000))))
            assert len(caplog.messages) == DENIALS_LOGGED_MAX + 1
            caplog.clear()
            await world.send("metadata", 12, metadata_request())  # a list is filtered, not refused
            assert not caplog.messages

    run(tmp_path, scenario)
