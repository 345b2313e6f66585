"""Topic configs: one config, several configs, and changes."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field

from headwater.api.links import Links
from headwater.api.schemas.resource import Metadata, RequestBody
from headwater.api.topic_model import CONFIGS_MAX, ConfigChange, ConfigValue, ErrorCode, TopicAdminError


class ConfigSynonymData(BaseModel):
    """A possible source of the value."""

    name: str
    value: str | None
    source: str


class TopicConfigData(BaseModel):
    """A config of a topic."""

    kind: str = "KafkaTopicConfig"
    metadata: Metadata
    cluster_id: str
    topic_name: str
    name: str
    value: str | None
    is_default: bool
    is_read_only: bool
    is_sensitive: bool
    source: str
    synonyms: list[ConfigSynonymData]

    @classmethod
    def of(cls, config: ConfigValue, topic_name: str, cluster_id: str, links: Links) -> TopicConfigData:
        """Build the body of a config."""
        return cls(
            metadata=Metadata(
                self_url=links.url("topics", topic_name, "configs", config.name),
                resource_name=links.resource_name(topic=topic_name, config=config.name),
            ),
            cluster_id=cluster_id,
            topic_name=topic_name,
            name=config.name,
            value=config.value,
            is_default=config.is_default,
            is_read_only=config.is_read_only,
            is_sensitive=config.is_sensitive,
            source=config.source,
            synonyms=[ConfigSynonymData(name=s.name, value=s.value, source=s.source) for s in config.synonyms],
        )


class UpdateConfigBody(RequestBody):
    """The new value of the config in the path."""

    value: str


class AlterConfigEntry(RequestBody):
    """One of several changes."""

    name: str
    value: str | None = None
    operation: Literal["SET", "DELETE"] = "SET"

    def to_change(self) -> ConfigChange:
        """Turn the entry into the administration module's change."""
        if self.operation == "DELETE":
            return ConfigChange(self.name, None)
        if self.value is None:
            raise TopicAdminError(
                ErrorCode.INVALID_CONFIG, f"config {self.name!r} needs a value, or the operation DELETE"
            )
        return ConfigChange(self.name, self.value)


class AlterConfigsBody(RequestBody):
    """Changes that are applied all or none."""

    data: list[AlterConfigEntry] = Field(min_length=1, max_length=CONFIGS_MAX)
    validate_only: bool = False
