"""`/clusters`, `/clusters/{cluster_id}/brokers` and the replicas of a broker."""

from __future__ import annotations

from fastapi import APIRouter

from headwater.api.access import Admin, BrokerId, Cluster, ClusterAccess
from headwater.api.json_route import JsonRoute
from headwater.api.links import Links, Root
from headwater.api.schemas.clusters import BrokerData, ClusterData
from headwater.api.schemas.partitions import ReplicaData
from headwater.api.schemas.resource import ListMetadata, ResourceList
from headwater.api.topic_model import BrokerInfo, ErrorCode, TopicAdminError

router = APIRouter(tags=["clusters"], route_class=JsonRoute)


@router.get("/clusters")
def list_clusters(admin: Admin, root: Root) -> ResourceList[ClusterData]:
    """List the clusters: the single cluster that this server administers."""
    info = admin.cluster()
    data = [ClusterData.of(info, Links(root, info.cluster_id))]
    return ResourceList(kind="KafkaClusterList", metadata=ListMetadata(self_url=f"{root}/clusters"), data=data)


@router.get("/clusters/{cluster_id}")
def get_cluster(cluster: Cluster) -> ClusterData:
    """Describe the cluster."""
    return ClusterData.of(cluster.admin.cluster(), cluster.links)


@router.get("/clusters/{cluster_id}/brokers")
def list_brokers(cluster: Cluster) -> ResourceList[BrokerData]:
    """List the brokers."""
    brokers = cluster.admin.cluster().brokers
    return ResourceList(
        kind="KafkaBrokerList",
        metadata=ListMetadata(self_url=cluster.links.url("brokers")),
        data=[BrokerData.of(broker, cluster.cluster_id, cluster.links) for broker in brokers],
    )


@router.get("/clusters/{cluster_id}/brokers/{broker_id}")
def get_broker(cluster: Cluster, broker_id: BrokerId) -> BrokerData:
    """Describe one broker."""
    return BrokerData.of(_broker(cluster, broker_id), cluster.cluster_id, cluster.links)


@router.get("/clusters/{cluster_id}/brokers/{broker_id}/partition-replicas")
def list_replicas_of_broker(cluster: Cluster, broker_id: BrokerId) -> ResourceList[ReplicaData]:
    """List the replicas of a broker, those of internal topics included; also of one that is away."""
    replicas = [
        ReplicaData.of(partition, broker_id, topic.name, cluster.cluster_id, cluster.links)
        for topic in cluster.admin.list_topics()
        for partition in topic.partitions
        if broker_id in partition.replicas
    ]
    if not replicas:
        _broker(cluster, broker_id)
    return ResourceList(
        kind="KafkaReplicaList",
        metadata=ListMetadata(self_url=cluster.links.url("brokers", broker_id, "partition-replicas")),
        data=replicas,
    )


def _broker(cluster: ClusterAccess, broker_id: int) -> BrokerInfo:
    for broker in cluster.admin.cluster().brokers:
        if broker.broker_id == broker_id:
            return broker
    raise TopicAdminError(ErrorCode.UNKNOWN_BROKER, f"there is no broker {broker_id}")
