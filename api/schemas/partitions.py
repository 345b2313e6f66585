"""Partitions and their replicas."""

from __future__ import annotations

from pydantic import BaseModel

from headwater.api.links import Links
from headwater.api.schemas.resource import Metadata, Relationship
from headwater.api.topic_model import PartitionInfo


class PartitionData(BaseModel):
    """A partition of a topic; `leader` is null while no leader is known."""

    kind: str = "KafkaPartition"
    metadata: Metadata
    cluster_id: str
    topic_name: str
    partition_id: int
    leader: Relationship | None
    replicas: Relationship
    reassignment: Relationship

    @classmethod
    def of(cls, info: PartitionInfo, topic_name: str, cluster_id: str, links: Links) -> PartitionData:
        """Build the body of a partition."""
        path = ("topics", topic_name, "partitions", info.partition)
        leader = None if info.leader is None else Relationship(related=links.url(*path, "replicas", info.leader))
        return cls(
            metadata=Metadata(
                self_url=links.url(*path),
                resource_name=links.resource_name(topic=topic_name, partition=info.partition),
            ),
            cluster_id=cluster_id,
            topic_name=topic_name,
            partition_id=info.partition,
            leader=leader,
            replicas=Relationship(related=links.url(*path, "replicas")),
            reassignment=Relationship(related=links.url(*path, "reassignment")),
        )


class ReplicaData(BaseModel):
    """A replica of a partition."""

    kind: str = "KafkaReplica"
    metadata: Metadata
    cluster_id: str
    topic_name: str
    partition_id: int
    broker_id: int
    is_leader: bool
    is_in_sync: bool
    broker: Relationship

    @classmethod
    def of(cls, info: PartitionInfo, broker_id: int, topic_name: str, cluster_id: str, links: Links) -> ReplicaData:
        """Build the body of a replica."""
        return cls(
            metadata=Metadata(
                self_url=links.url("topics", topic_name, "partitions", info.partition, "replicas", broker_id),
                resource_name=links.resource_name(topic=topic_name, partition=info.partition, replica=broker_id),
            ),
            cluster_id=cluster_id,
            topic_name=topic_name,
            partition_id=info.partition,
            broker_id=broker_id,
            is_leader=broker_id == info.leader,
            is_in_sync=broker_id in info.isr,
            broker=Relationship(related=links.url("brokers", broker_id)),
        )
