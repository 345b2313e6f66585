"""Configs in the format of DescribeConfigs and CreateTopics: value, source, and synonyms."""

import enum
from dataclasses import dataclass
from typing import Final

from headwater.logtier.config import BROKER_CONFIGS, ConfigDef, ConfigError, ConsumerGroupConfig, broker_default, render
from headwater.logtier.metadata import paths
from headwater.logtier.metadata.image import MetadataCache, TopicImage

_ADVERTISED: Final = "advertised.listeners"


class ConfigSource(enum.IntEnum):
    """The source of a value, with the protocol's numbers."""

    DYNAMIC_TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5
    DYNAMIC_GROUP_CONFIG = 8


@dataclass(frozen=True, slots=True)
class Synonym:
    """A config that determines a value, or would without the preceding ones."""

    name: str
    value: str | None
    source: ConfigSource


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """One config of one resource. The first of `synonyms` is the source of `value`.

    Exception: a dynamic broker config that is invalid with the static configs is listed but has no effect.
    """

    definition: ConfigDef
    value: str | None
    source: ConfigSource
    read_only: bool
    synonyms: tuple[Synonym, ...]

    @property
    def name(self) -> str:
        """Kafka's name of the config."""
        return self.definition.name

    @property
    def is_sensitive(self) -> bool:
        """Whether the value is a secret, reported as None."""
        return self.definition.sensitive


def topic_config_entry(definition: ConfigDef, topic: TopicImage, metadata: MetadataCache) -> ConfigEntry:
    """Return one config of a topic."""
    synonyms: list[Synonym] = []
    source: ConfigSource
    if definition.name in topic.configs:
        override = render(definition.parse(topic.configs[definition.name]))
        synonyms.append(Synonym(definition.name, override, ConfigSource.DYNAMIC_TOPIC_CONFIG))
    for name in definition.broker_configs:
        synonyms += _broker_synonyms(BROKER_CONFIGS[name], metadata)
    if synonyms and synonyms[0].source is ConfigSource.DYNAMIC_TOPIC_CONFIG:
        value, source = synonyms[0].value, synonyms[0].source
    else:
        inherited = broker_default(definition, metadata.config)
        value = render(definition.default if inherited is None else inherited[1])
        source = ConfigSource.DEFAULT_CONFIG if inherited is None else _source(inherited[0], metadata)
    return _entry(definition, value, source, read_only=False, synonyms=synonyms)


def group_config_entry(definition: ConfigDef, group_id: str, metadata: MetadataCache) -> ConfigEntry:
    """Return one config of a consumer group."""
    overrides = metadata.image.group_configs.get(group_id, {})
    value = render(getattr(ConsumerGroupConfig.resolve(overrides, metadata.config), definition.attribute))
    synonyms = (
        [] if definition.name not in overrides else [Synonym(definition.name, value, ConfigSource.DYNAMIC_GROUP_CONFIG)]
    )
    for name in definition.broker_configs:
        synonyms += _broker_synonyms(BROKER_CONFIGS[name], metadata)
    source = synonyms[0].source if synonyms else ConfigSource.DEFAULT_CONFIG
    return _entry(definition, value, source, read_only=False, synonyms=synonyms)


def broker_config_entry(definition: ConfigDef, metadata: MetadataCache) -> ConfigEntry:
    """Return one config of this broker."""
    synonyms = _broker_synonyms(definition, metadata)
    value = render(metadata.config.value(definition.name))
    source = _source(definition.name, metadata)
    if definition.name == _ADVERTISED and source is ConfigSource.DEFAULT_CONFIG:
        # Derived from the listeners at the start; clients read the broker's addresses here and in Metadata.
        value, source = _advertised(metadata), ConfigSource.STATIC_BROKER_CONFIG
        synonyms = [Synonym(_ADVERTISED, value, source)]
    return _entry(definition, value, source, read_only=not definition.dynamic, synonyms=synonyms)


def _advertised(metadata: MetadataCache) -> str:
    """Return the advertised addresses of this broker."""
    config = metadata.static_config
    broker = metadata.image.brokers.get(config.node_id)
    if broker is None:  # not registered yet
        return render(config.listeners) or ""
    return ",".join(
        str(endpoint._replace(host=host, port=port))
        for endpoint in config.bind_endpoints
        for host, port in (broker.reached_by(endpoint.name),)
    )


def cluster_default_entry(definition: ConfigDef, metadata: MetadataCache) -> ConfigEntry:
    """Return one dynamic config of all brokers; overrides of single brokers are not included."""
    source = ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG
    synonyms = [synonym for synonym in _broker_synonyms(definition, metadata) if synonym.source is source]
    return _entry(definition, synonyms[0].value, source, read_only=not definition.dynamic, synonyms=synonyms)


def _entry(
    definition: ConfigDef, value: str | None, source: ConfigSource, *, read_only: bool, synonyms: list[Synonym]
) -> ConfigEntry:
    if definition.sensitive:
        value = None
        synonyms = [Synonym(synonym.name, None, synonym.source) for synonym in synonyms]
    return ConfigEntry(definition, value, source, read_only, tuple(synonyms))


def _source(broker_config: str, metadata: MetadataCache) -> ConfigSource:
    dynamic = metadata.image.broker_configs
    if broker_config in dynamic.get(str(metadata.static_config.node_id), {}):
        return ConfigSource.DYNAMIC_BROKER_CONFIG
    if broker_config in dynamic.get(paths.CLUSTER_DEFAULT, {}):
        return ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG
    if broker_config in metadata.static_config.explicit:
        return ConfigSource.STATIC_BROKER_CONFIG
    return ConfigSource.DEFAULT_CONFIG


def _broker_synonyms(definition: ConfigDef, metadata: MetadataCache) -> list[Synonym]:
    """Return the values set for a broker config by descending priority, and its default."""
    name = definition.name
    synonyms = []
    for resource, source in (
        (str(metadata.static_config.node_id), ConfigSource.DYNAMIC_BROKER_CONFIG),
        (paths.CLUSTER_DEFAULT, ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG),
    ):
        configs = metadata.image.broker_configs.get(resource, {})
        if name in configs:
            synonyms.append(Synonym(name, _stored(definition, configs[name]), source))
    if name in metadata.static_config.explicit:
        value = render(metadata.static_config.value(name))
        synonyms.append(Synonym(name, value, ConfigSource.STATIC_BROKER_CONFIG))
    if definition.default is not None:
        synonyms.append(Synonym(name, render(definition.default), ConfigSource.DEFAULT_CONFIG))
    return synonyms


def _stored(definition: ConfigDef, text: str) -> str | None:
    try:
        return render(definition.parse(text))
    except ConfigError:
        # An earlier release accepted the value; it is reported so that it can be found and deleted.
        return text
