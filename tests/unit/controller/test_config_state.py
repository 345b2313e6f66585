import uuid

import pytest

from headwater.logtier.config import BrokerConfig
from headwater.logtier.controller.commands import ConfigChange, ConfigOperation, ConfigOperationType, ConfigResourceType
from headwater.logtier.controller.config_state import plan_alter_configs, plan_common_min_isr
from headwater.logtier.controller.state import Plan
from headwater.logtier.metadata import paths
from headwater.logtier.metadata.image import MetadataImage
from headwater.logtier.metadata.store import Create, Delete, SetData
from headwater.logtier.metadata.topic_nodes import PartitionImage, chunk_path, encode_chunk
from headwater.logtier.protocol.errors import ErrorCode
from tests.topic_images import topic_changes

SET, DELETE, APPEND, SUBTRACT = ConfigOperationType
TOPIC, BROKER = ConfigResourceType.TOPIC, ConfigResourceType.BROKER
CONFIG = BrokerConfig.from_properties()


def image_of(**configs: str) -> MetadataImage:
    changes: list[tuple[str, bytes | None]] = [
        (paths.known_broker_path(1), paths.encode_known_broker("h", 1, None, 0)),
        *topic_changes("t", uuid.UUID(int=10), [(1,)]),
        *topic_changes("__consumer_offsets", uuid.UUID(int=11), [(1,)]),
    ]
    if configs:
        named = {name.replace("_", "."): value for name, value in configs.items()}
        changes.append((paths.topic_config_path("t"), paths.encode_config(named)))
    return MetadataImage().apply(changes)


def alter(
    image: MetadataImage,
    *operations: tuple[str, int, str | None],
    resource: tuple[int, str] = (TOPIC, "t"),
    replace_all: bool = False,
) -> tuple[object, Plan[object]]:
    change = ConfigChange(*resource, [ConfigOperation(*operation) for operation in operations], replace_all)
    plan = plan_alter_configs(image, CONFIG, [change])
    error = plan.results[0].error
    return (error.code if error else None), plan  # type: ignore[return-value]


def written(plan: Plan[object]) -> dict[str, str]:
    (operation,) = plan.operations
    assert isinstance(operation, Create | SetData)
    return paths.decode_config(operation.path, operation.data)


def test_configs_are_set_kept_and_deleted() -> None:
    error, plan = alter(image_of(), ("retention.ms", SET, "5"))
    assert (error, written(plan)) == (None, {"retention.ms": "5"})
    assert isinstance(plan.operations[0], Create)
    _, plan = alter(image_of(retention_ms="5", segment_bytes="100"), ("retention.ms", DELETE, None))
    assert written(plan) == {"segment.bytes": "100"}
    _, plan = alter(image_of(retention_ms="5"), ("retention.ms", DELETE, None))
    assert plan.operations == [Delete("/config/topics/t")]
    _, plan = alter(image_of(retention_ms="5"), ("retention.ms", SET, "5"))
    assert plan.operations == []
    _, plan = alter(image_of(), ("retention.ms", DELETE, None))
    assert plan.operations == []


def test_replacing_all_drops_what_is_not_named() -> None:
    _, plan = alter(image_of(retention_ms="5"), ("segment.bytes", SET, "100"), replace_all=True)
    assert written(plan) == {"segment.bytes": "100"}
    _, plan = alter(image_of(retention_ms="5"), replace_all=True)
    assert plan.operations == [Delete("/config/topics/t")]


def test_lists_are_appended_to_and_subtracted_from() -> None:
    internal = (TOPIC, "__consumer_offsets")
    _, plan = alter(image_of(), ("cleanup.policy", APPEND, "compact,delete"), resource=internal)
    assert written(plan) == {"cleanup.policy": "delete,compact"}
    compacted = image_of().apply(
        [(paths.topic_config_path("__consumer_offsets"), paths.encode_config({"cleanup.policy": "delete,compact"}))]
    )
    _, plan = alter(compacted, ("cleanup.policy", SUBTRACT, "delete"), resource=internal)
    assert written(plan) == {"cleanup.policy": "compact"}
    error, _ = alter(compacted, ("cleanup.policy", SUBTRACT, "delete,compact"), resource=internal)
    assert error is ErrorCode.invalid_config


@pytest.mark.parametrize(
    ("operation", "code"),
    [
        (("retention.ms", SET, "x"), ErrorCode.invalid_config),
        (("retention.ms", SET, None), ErrorCode.invalid_request),
        (("retention.ms", APPEND, "1"), ErrorCode.invalid_config),
        (("retention", SET, "1"), ErrorCode.invalid_config),
        (("cleanup.policy", SET, "shrink"), ErrorCode.invalid_config),
        (("cleanup.policy", APPEND, "shrink"), ErrorCode.invalid_config),
        (("retention.ms", 9, "1"), ErrorCode.invalid_request),
    ],
)
def test_a_bad_operation_changes_nothing(operation: tuple[str, int, str | None], code: ErrorCode) -> None:
    error, plan = alter(image_of(), ("segment.bytes", SET, "100"), operation)
    assert error is code
    assert plan.operations == []


@pytest.mark.parametrize(
    ("resource", "code"),
    [
        ((TOPIC, "missing"), ErrorCode.unknown_topic_or_partition),
        ((BROKER, "2"), ErrorCode.invalid_request),
        ((BROKER, "one"), ErrorCode.invalid_request),
        ((ConfigResourceType.GROUP, "g"), ErrorCode.invalid_config),
        ((ConfigResourceType.GROUP, ""), ErrorCode.invalid_request),
        ((99, "x"), ErrorCode.invalid_request),
    ],
)
def test_a_resource_without_configs_is_refused(resource: tuple[int, str], code: ErrorCode) -> None:
    assert alter(image_of(), ("segment.bytes", SET, "100"), resource=resource)[0] is code


def test_what_stands_twice_is_refused() -> None:
    assert alter(image_of(), ("retention.ms", SET, "1"), ("retention.ms", SET, "2"))[0] is ErrorCode.invalid_request
    change = ConfigChange(TOPIC, "t", [ConfigOperation("retention.ms", SET, "1")])
    plan = plan_alter_configs(image_of(), CONFIG, [change, change])
    assert [result.error.code for result in plan.results if result.error] == [ErrorCode.invalid_request]
    assert plan.operations == []


def test_dynamic_configs_of_brokers_are_kept_for_one_or_all() -> None:
    error, plan = alter(image_of(), ("log.retention.ms", SET, "5"), resource=(BROKER, "1"))
    assert (error, plan.operations[0].path) == (None, "/config/brokers/1")
    error, plan = alter(image_of(), ("log.retention.ms", SET, "5"), resource=(BROKER, ""))
    assert (error, plan.operations[0].path) == (None, "/config/brokers/<default>")


@pytest.mark.parametrize(
    ("operation", "code"),
    [
        (("num.partitions", SET, "5"), ErrorCode.invalid_request),
        (("log.retention.ms", SET, "soon"), ErrorCode.invalid_request),
        (("log.cleanup.policy", SET, "shrink"), ErrorCode.invalid_request),
        (("message.max.bytes", SET, "2000000000"), ErrorCode.invalid_request),
        (("background.threads", SET, "5"), ErrorCode.invalid_request),
        (("log.cleanup.policy", APPEND, "shrink"), ErrorCode.invalid_request),
        (("log.retention.ms", APPEND, "5"), ErrorCode.invalid_config),
        (("log.retention.ms", SUBTRACT, "5"), ErrorCode.invalid_config),
        (("min.insync.replicas", SET, "2"), ErrorCode.invalid_config),
        (("num.partitions", APPEND, "5"), ErrorCode.invalid_config),
    ],
)
def test_a_broker_config_that_cannot_be_applied_is_refused(
    operation: tuple[str, int, str | None], code: ErrorCode
) -> None:
    error, plan = alter(image_of(), operation, resource=(BROKER, "1"))
    assert error is code
    assert plan.operations == []


def test_the_minimum_of_in_sync_replicas_is_one_of_all_brokers() -> None:
    """KIP-966: a leader that counts with another minimum than the controller commits what no eligible leader has."""
    error, plan = alter(image_of(), ("min.insync.replicas", SET, "2"), resource=(BROKER, ""))
    assert (error, plan.operations[0].path) == (None, "/config/brokers/<default>")


def test_a_cluster_takes_its_minimum_of_in_sync_replicas_from_its_first_controller() -> None:
    """Brokers' properties may differ, and a single node takes its own."""
    clustered = BrokerConfig.from_properties({"node.id": 1, "zookeeper.connect": "z:1", "min.insync.replicas": 2})
    other = clustered.with_properties({"min.insync.replicas": "1"})
    image = image_of().apply([(paths.broker_config_path("<default>"), paths.encode_config({"log.retention.ms": "5"}))])
    [operation] = plan_common_min_isr(image, clustered)
    assert isinstance(operation, SetData)
    after = image.apply([(operation.path, operation.data)])
    assert after.broker_configs["<default>"] == {"log.retention.ms": "5", "min.insync.replicas": "2"}
    assert plan_common_min_isr(after, other) == []
    assert plan_common_min_isr(image, CONFIG) == []
    # The controller before had another minimum: under the lower one, members of the ELR lack what is committed.
    shrunk = image.apply([(chunk_path("t", 0), encode_chunk([PartitionImage(1, 0, 1, (1, 2), (1,), elr=(2,))]))])
    lower = clustered.with_properties({"min.insync.replicas": "1"})
    paths_written = [each.path for each in plan_common_min_isr(shrunk, lower)]
    assert paths_written == [chunk_path("t", 0), paths.broker_config_path("<default>")]
    for operations, replace_all in (([ConfigOperation("min.insync.replicas", DELETE, None)], False), ([], True)):
        change = ConfigChange(BROKER, "", operations, replace_all=replace_all)
        plan = plan_alter_configs(after, clustered, [change])
        assert (plan.results[0].error and plan.results[0].error.code) is ErrorCode.invalid_config
        assert plan_alter_configs(after, CONFIG, [change]).results[0].error is None


def test_a_stored_config_that_does_not_fit_hinders_no_other_change() -> None:
    unfit = {"message.max.bytes": "2000000000"}
    image = image_of().apply(
        [(paths.broker_config_path(name), paths.encode_config(unfit)) for name in ("<default>", "1")]
    )
    for resource in ((BROKER, ""), (BROKER, "1")):
        error, plan = alter(image, ("log.retention.ms", SET, "5"), resource=resource)
        assert (error, written(plan)) == (None, unfit | {"log.retention.ms": "5"})
        error, plan = alter(image, ("message.max.bytes", DELETE, None), resource=resource)
        assert (error, [type(operation) for operation in plan.operations]) == (None, [Delete])
        error, _ = alter(image, ("message.max.bytes", SET, "1999999999"), resource=resource)
        assert error is ErrorCode.invalid_request
    error, _ = alter(image, ("consumer.session.timeout.ms", SET, "50000"), resource=GROUP)
    assert error is None


GROUP = (ConfigResourceType.GROUP, "orders/eu")


def test_configs_of_a_group_are_kept_under_its_encoded_id() -> None:
    code, plan = alter(image_of(), ("consumer.session.timeout.ms", SET, "50000"), resource=GROUP)
    assert code is None
    [operation] = plan.operations
    assert operation == Create(
        "/config/groups/orders%2Feu", paths.encode_config({"consumer.session.timeout.ms": "50000"})
    )
    image = image_of().apply([(operation.path, operation.data)])
    assert image.group_configs == {"orders/eu": {"consumer.session.timeout.ms": "50000"}}
    code, plan = alter(image, ("consumer.session.timeout.ms", DELETE, None), resource=GROUP)
    assert plan.operations == [Delete("/config/groups/orders%2Feu")]
    assert image.apply([("/config/groups/orders%2Feu", None)]).group_configs == {}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("consumer.session.timeout.ms", "44999"),
        ("consumer.session.timeout.ms", "60001"),
        ("consumer.heartbeat.interval.ms", "15001"),
        ("consumer.heartbeat.interval.ms", "often"),
        ("session.timeout.ms", "50000"),
    ],
)
def test_a_groups_configs_keep_within_the_brokers_limits(name: str, value: str) -> None:
    assert alter(image_of(), (name, SET, value), resource=GROUP)[0] is ErrorCode.invalid_config
