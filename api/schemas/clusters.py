"""Clusters and brokers."""

from __future__ import annotations

from pydantic import BaseModel

from headwater.api.links import Links
from headwater.api.schemas.resource import Metadata, Relationship
from headwater.api.topic_model import BrokerInfo, ClusterInfo


class ClusterData(BaseModel):
    """A cluster, with links to its resources."""

    kind: str = "KafkaCluster"
    metadata: Metadata
    cluster_id: str
    controller: Relationship | None
    acls: Relationship
    brokers: Relationship
    broker_configs: Relationship
    consumer_groups: Relationship
    topics: Relationship
    partition_reassignments: Relationship

    @classmethod
    def of(cls, info: ClusterInfo, links: Links) -> ClusterData:
        """Build the body of a cluster."""
        return cls(
            metadata=Metadata(self_url=links.url(), resource_name=links.resource_name()),
            cluster_id=info.cluster_id,
            controller=None
            if info.controller_id is None
            else Relationship(related=links.url("brokers", info.controller_id)),
            acls=Relationship(related=links.url("acls")),
            brokers=Relationship(related=links.url("brokers")),
            broker_configs=Relationship(related=links.url("broker-configs")),
            consumer_groups=Relationship(related=links.url("consumer-groups")),
            topics=Relationship(related=links.url("topics")),
            partition_reassignments=Relationship(
                related=links.url("topics", "-", "partitions", "-", "reassignment"),
            ),
        )


class BrokerData(BaseModel):
    """A broker, as Metadata describes it."""

    kind: str = "KafkaBroker"
    metadata: Metadata
    cluster_id: str
    broker_id: int
    host: str
    port: int
    rack: str | None
    configs: Relationship
    partition_replicas: Relationship

    @classmethod
    def of(cls, info: BrokerInfo, cluster_id: str, links: Links) -> BrokerData:
        """Build the body of a broker."""
        return cls(
            metadata=Metadata(
                self_url=links.url("brokers", info.broker_id), resource_name=links.resource_name(broker=info.broker_id)
            ),
            cluster_id=cluster_id,
            broker_id=info.broker_id,
            host=info.host,
            port=info.port,
            rack=info.rack,
            configs=Relationship(related=links.url("brokers", info.broker_id, "configs")),
            partition_replicas=Relationship(related=links.url("brokers", info.broker_id, "partition-replicas")),
        )
