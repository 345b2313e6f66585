"""`/clusters` and `/clusters/{cluster_id}/brokers`."""

from __future__ import annotations

from fastapi import APIRouter

from headwater.api.access import Admin, BrokerId, Cluster
from headwater.api.json_route import JsonRoute
from headwater.api.links import Links, Root
from headwater.api.schemas.clusters import BrokerData, ClusterData
from headwater.api.schemas.resource import ListMetadata, ResourceList
from headwater.api.topic_model import ErrorCode, TopicAdminError

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
    for broker in cluster.admin.cluster().brokers:
        if broker.broker_id == broker_id:
            return BrokerData.of(broker, cluster.cluster_id, cluster.links)
    raise TopicAdminError(ErrorCode.UNKNOWN_BROKER, f"there is no broker {broker_id}")
