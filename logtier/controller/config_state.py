"""Decisions of the controller on configs: (image, changes) to store operations or an error. Pure."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from headwater.logtier.config import (
    BROKER_CONFIGS,
    GROUP_CONFIGS,
    TOPIC_CONFIGS,
    BrokerConfig,
    ConfigDef,
    ConfigError,
    ConfigType,
    ConsumerGroupConfig,
    TopicConfig,
    check_group_overrides,
    check_topic_overrides,
    render,
)
from headwater.logtier.config.definition import unknown_name
from headwater.logtier.controller.commands import (
    ConfigChange,
    ConfigOperation,
    ConfigOperationType,
    ConfigResourceType,
    ConfigResult,
)
from headwater.logtier.controller.elections import plan_lower_min_isr
from headwater.logtier.controller.state import Plan
from headwater.logtier.metadata import paths
from headwater.logtier.metadata.image import MetadataImage, TopicImage, dynamic_broker_configs
from headwater.logtier.metadata.store import Create, Delete, Operation, SetData
from headwater.logtier.metadata.topic_names import topic_name_problem
from headwater.logtier.protocol.errors import ErrorCode, KafkaError

MIN_ISR: Final = "min.insync.replicas"


def plan_alter_configs(
    image: MetadataImage, static_config: BrokerConfig, changes: Sequence[ConfigChange]
) -> Plan[ConfigResult]:
    """Change configs of topics, brokers and groups; the changes of a resource are accepted or rejected together.

    Args:
        static_config: The broker's configs without dynamic ones: defaults of topics, and values after a deletion.
    """
    plan: Plan[ConfigResult] = Plan()
    asked = Counter((change.resource_type, change.resource_name) for change in changes)
    for change in {(change.resource_type, change.resource_name): change for change in changes}.values():
        try:
            if asked[change.resource_type, change.resource_name] > 1:
                raise KafkaError(ErrorCode.invalid_request, "The resource is listed twice in the request.")
            _check_operations(change)
            match change.resource_type:
                case ConfigResourceType.TOPIC:
                    operations = _alter_topic(image, static_config, change)
                case ConfigResourceType.BROKER:
                    operations = _alter_broker(image, static_config, change)
                case ConfigResourceType.GROUP:
                    operations = _alter_group(image, static_config, change)
                case _:
                    raise unsupported_resource(change.resource_type)
        except ConfigError as error:
            is_broker = change.resource_type == ConfigResourceType.BROKER
            # As in Kafka, an invalid broker config has the code invalid_request.
            refusal = KafkaError(ErrorCode.invalid_request if is_broker else ErrorCode.invalid_config, str(error))
            plan.add(ConfigResult(change.resource_type, change.resource_name, refusal))
        except KafkaError as error:
            plan.add(ConfigResult(change.resource_type, change.resource_name, error))
        else:
            plan.add(ConfigResult(change.resource_type, change.resource_name), operations)
    return plan


def plan_common_min_isr(image: MetadataImage, static_config: BrokerConfig) -> list[Operation]:
    """Return the operations that make the controller's min.insync.replicas that of a cluster that has none yet.

    Leaders commit by it and the controller elects by it, while the brokers' properties may differ. Kafka writes the
    same config when a cluster begins to have ELRs (KIP-966). The operations may take effect one by one.
    """
    if static_config.zookeeper_connect is None:
        return []  # a cluster of this broker
    current = image.broker_configs.get(paths.CLUSTER_DEFAULT, {})
    common = {MIN_ISR: str(static_config.min_insync_replicas), **current}
    written = _write(paths.broker_config_path(paths.CLUSTER_DEFAULT), current, common)
    # It may be lower than the minimum of the controller before.
    return [*plan_lower_min_isr(image, min_isr_after(image, static_config, written)), *written] if written else []


def min_isr_after(
    image: MetadataImage, static_config: BrokerConfig, operations: Sequence[Operation]
) -> Callable[[TopicImage], int]:
    """Return the function that returns the min.insync.replicas of a topic after operations of `plan_alter_configs`."""
    after = image.apply((each.path, each.data if isinstance(each, Create | SetData) else None) for each in operations)
    broker, _ = static_config.with_fitting(dynamic_broker_configs(after, static_config.node_id))
    return lambda topic: TopicConfig.resolve(after.topics[topic.name].configs, broker).min_insync_replicas


def unsupported_resource(resource_type: int) -> KafkaError:
    """Return the error for configs of an unsupported resource type."""
    try:
        name = ConfigResourceType(resource_type).name
    except ValueError:
        name = str(resource_type)
    return KafkaError(
        ErrorCode.invalid_request, f"Configs of resource type {name} are not supported; TOPIC, BROKER and GROUP are."
    )


def _check_operations(change: ConfigChange) -> None:
    names = Counter(operation.name for operation in change.operations)
    twice = [name for name, count in names.items() if count > 1]
    if twice:
        raise KafkaError(ErrorCode.invalid_request, f"Config {twice[0][:200]!r} is listed twice in the request.")
    for operation in change.operations:
        if operation.type not in set(ConfigOperationType):
            raise KafkaError(ErrorCode.invalid_request, f"Config operation {operation.type} is unknown.")
        if operation.value is None and operation.type != ConfigOperationType.DELETE:
            raise KafkaError(ErrorCode.invalid_request, f"Config {operation.name[:200]!r} has no value.")


def _alter_topic(image: MetadataImage, static_config: BrokerConfig, change: ConfigChange) -> list[Operation]:
    if not change.resource_name:
        raise KafkaError(ErrorCode.invalid_request, "Default topic resources are not allowed.")
    problem = topic_name_problem(change.resource_name)
    if problem is not None:
        raise KafkaError(ErrorCode.invalid_topic_exception, problem)
    topic = image.topic(change.resource_name)
    if topic is None:
        raise KafkaError(ErrorCode.unknown_topic_or_partition, f"Topic '{change.resource_name[:249]}' does not exist.")
    defaults = TopicConfig.resolve({}, static_config)
    altered = _altered(change, topic.configs, TOPIC_CONFIGS, "topic config", defaults)
    check_topic_overrides(altered, static_config)
    return _write(paths.topic_config_path(topic.name), topic.configs, altered)


def _alter_broker(image: MetadataImage, static_config: BrokerConfig, change: ConfigChange) -> list[Operation]:
    name = change.resource_name or paths.CLUSTER_DEFAULT
    if name != paths.CLUSTER_DEFAULT and not (
        name.isascii() and name.isdigit() and len(name) < 11 and int(name) in image.brokers
    ):
        raise KafkaError(
            ErrorCode.invalid_request, f"{name[:64]!r} is not the id of a registered broker; empty means all brokers."
        )
    current = image.broker_configs.get(name, {})
    altered = _altered(change, current, BROKER_CONFIGS, "broker config", static_config)
    for operation in change.operations:
        is_own = name != paths.CLUSTER_DEFAULT and operation.type != ConfigOperationType.DELETE
        if is_own and operation.name == MIN_ISR:
            # As in `plan_common_min_isr`.
            raise KafkaError(
                ErrorCode.invalid_config, f"{MIN_ISR} of one broker cannot be set: set that of all brokers."
            )
        definition = BROKER_CONFIGS.get(operation.name)
        if definition is not None and not definition.dynamic:
            raise KafkaError(
                ErrorCode.invalid_request,
                f"Broker config {operation.name} is read only at the start: set it in the broker's properties and "
                "restart the broker.",
            )
    if static_config.zookeeper_connect is not None and name == paths.CLUSTER_DEFAULT and MIN_ISR not in altered:
        # As in `plan_common_min_isr`, and as in Kafka.
        raise KafkaError(
            ErrorCode.invalid_config, f"{MIN_ISR} of all brokers cannot be removed from a cluster: set another value."
        )
    path = paths.broker_config_path(name)
    operations = _write(path, current, altered)
    if name not in (paths.CLUSTER_DEFAULT, str(static_config.node_id)):
        return operations  # Of another broker: whether they fit its properties, that broker has checked.
    # All configs effective for this broker must be valid together, not only the changed ones.
    after = image.apply([(path, paths.encode_config(altered))])
    node_id = static_config.node_id
    _check_fits(static_config, dynamic_broker_configs(image, node_id), dynamic_broker_configs(after, node_id))
    _check_fits(static_config, current, altered)
    return operations


def _check_fits(static_config: BrokerConfig, before: Mapping[str, str], after: Mapping[str, str]) -> None:
    """Raise ConfigError if a change is invalid; unchanged values that were invalid before are accepted."""
    unfit = static_config.with_fitting(before)[1]
    static_config.with_properties(
        {name: value for name, value in after.items() if name not in unfit or value != before[name]}
    )


def _alter_group(image: MetadataImage, static_config: BrokerConfig, change: ConfigChange) -> list[Operation]:
    name = change.resource_name
    if not name:
        raise KafkaError(ErrorCode.invalid_request, "Default group resources are not allowed.")
    current = image.group_configs.get(name, {})
    broker, _ = static_config.with_fitting(dynamic_broker_configs(image, static_config.node_id))
    defaults = ConsumerGroupConfig.resolve({}, broker)
    altered = _altered(change, current, GROUP_CONFIGS, "group config", defaults)
    check_group_overrides(altered, broker)
    return _write(paths.group_config_path(name), current, altered)


def _altered(
    change: ConfigChange, current: Mapping[str, str], definitions: Mapping[str, ConfigDef], what: str, defaults: Any
) -> dict[str, str]:
    altered = {} if change.replace_all else dict(current)
    for operation in change.operations:
        definition = definitions.get(operation.name)
        if definition is None:
            if operation.type == ConfigOperationType.DELETE:
                altered.pop(operation.name, None)
                continue
            raise unknown_name(what, operation.name, definitions)
        inherited = render(getattr(defaults, definition.attribute))
        _alter(altered, operation, definition, inherited or "")
    return altered


def _alter(altered: dict[str, str], operation: ConfigOperation, definition: ConfigDef, inherited: str) -> None:
    name = operation.name
    if operation.type == ConfigOperationType.DELETE:
        altered.pop(name, None)
        return
    assert operation.value is not None, "checked before"
    if operation.type == ConfigOperationType.SET:
        definition.parse(operation.value)
        altered[name] = operation.value
        return
    if definition.type is not ConfigType.LIST:
        verb = ConfigOperationType(operation.type).name
        message = f"{name}: {verb} is for lists, but the config has type {definition.type.name}; use SET"
        # As in Kafka, this error has the code invalid_config for broker configs as well.
        raise KafkaError(ErrorCode.invalid_config, message)
    entries = _entries(altered.get(name, inherited))
    given = _entries(operation.value)
    if operation.type == ConfigOperationType.APPEND:
        entries += [entry for entry in given if entry not in entries]
    else:
        entries = [entry for entry in entries if entry not in given]
    altered[name] = ",".join(entries)
    definition.parse(altered[name])


def _entries(text: str) -> list[str]:
    return [entry.strip() for entry in text.split(",") if entry.strip()]


def _write(path: str, current: Mapping[str, str], altered: Mapping[str, str]) -> list[Operation]:
    """Return the operation that changes the content of a config node; a node without configs is deleted."""
    if dict(current) == dict(altered):
        return []
    if not altered:
        return [Delete(path)]
    data = paths.encode_config(altered)
    return [SetData(path, data) if current else Create(path, data)]
