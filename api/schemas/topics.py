"""Topics: request bodies that create or grow a topic, and response bodies."""

from __future__ import annotations

from pydantic import BaseModel, Field, StrictInt

from headwater.api.links import Links
from headwater.api.schemas.resource import Metadata, Relationship, RequestBody
from headwater.api.topic_model import CONFIGS_MAX, PARTITIONS_MAX, ErrorCode, TopicAdminError, TopicInfo, TopicRequest


class TopicConfigEntry(RequestBody):
    """A config of a topic to create; null selects the default."""

    name: str
    value: str | None = None


class ReplicaAssignment(RequestBody):
    """The replicas of one partition, preferred leader first."""

    partition_id: StrictInt = Field(ge=0)
    broker_ids: list[StrictInt] = Field(min_length=1, max_length=1_000)


class CreateTopicBody(RequestBody):
    """A topic to create; a missing count selects the broker's default."""

    topic_name: str
    partitions_count: StrictInt | None = None
    replication_factor: StrictInt | None = None
    replicas_assignments: list[ReplicaAssignment] = Field(default=[], max_length=PARTITIONS_MAX)
    configs: list[TopicConfigEntry] = Field(default=[], max_length=CONFIGS_MAX)
    validate_only: bool = False

    def to_request(self) -> TopicRequest:
        """Turn the body into the administration module's request."""
        configs: dict[str, str] = {}
        for entry in self.configs:
            if entry.name in configs:
                raise TopicAdminError(ErrorCode.INVALID_CONFIG, f"config {entry.name!r} is given twice")
            if entry.value is not None:
                configs[entry.name] = entry.value
        assignment = None
        if self.replicas_assignments:
            by_partition = {entry.partition_id: entry.broker_ids for entry in self.replicas_assignments}
            if sorted(by_partition) != list(range(len(self.replicas_assignments))):
                raise TopicAdminError(
                    ErrorCode.INVALID_PARTITIONS, "replicas_assignments must name each partition from 0 up, once"
                )
            assignment = [by_partition[partition] for partition in range(len(by_partition))]
        return TopicRequest(self.topic_name, self.partitions_count, self.replication_factor, configs, assignment)


class UpdatePartitionsBody(RequestBody):
    """The new, larger partition count."""

    partitions_count: StrictInt
    validate_only: bool = False


class TopicData(BaseModel):
    """A topic, with links to its resources."""

    kind: str = "KafkaTopic"
    metadata: Metadata
    cluster_id: str
    topic_name: str
    is_internal: bool
    replication_factor: int
    partitions_count: int
    partitions: Relationship
    configs: Relationship
    partition_reassignments: Relationship
    authorized_operations: list[str] = []

    @classmethod
    def of(cls, info: TopicInfo, cluster_id: str, links: Links) -> TopicData:
        """Build the body of an existing topic."""
        return cls.planned(
            info.name, info.partitions_count, info.replication_factor, cluster_id, links, info.is_internal
        )

    @classmethod
    def planned(
        cls, name: str, partitions: int, replicas: int, cluster_id: str, links: Links, is_internal: bool = False
    ) -> TopicData:
        """Build the body of a topic that was only validated; 0 stands for the broker's default."""
        return cls(
            metadata=Metadata(self_url=links.url("topics", name), resource_name=links.resource_name(topic=name)),
            cluster_id=cluster_id,
            topic_name=name,
            is_internal=is_internal,
            replication_factor=replicas,
            partitions_count=partitions,
            partitions=Relationship(related=links.url("topics", name, "partitions")),
            configs=Relationship(related=links.url("topics", name, "configs")),
            partition_reassignments=Relationship(
                related=links.url("topics", name, "partitions", "-", "reassignment"),
            ),
        )
