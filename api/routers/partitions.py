"""`/clusters/{cluster_id}/topics/{topic_name}/partitions` and their replicas."""

from __future__ import annotations

from fastapi import APIRouter

from headwater.api.access import BrokerId, Cluster, ClusterAccess, PartitionId, TopicName
from headwater.api.json_route import JsonRoute
from headwater.api.schemas.partitions import PartitionData, ReplicaData
from headwater.api.schemas.resource import ListMetadata, ResourceList
from headwater.api.topic_model import ErrorCode, PartitionInfo, TopicAdminError

router = APIRouter(tags=["partitions"], route_class=JsonRoute)


def _partition(cluster: ClusterAccess, topic_name: str, partition_id: int) -> PartitionInfo:
    for partition in cluster.admin.describe_topic(topic_name).partitions:
        if partition.partition == partition_id:
            return partition
    raise TopicAdminError(ErrorCode.UNKNOWN_PARTITION, f"topic {topic_name!r} has no partition {partition_id}")


@router.get("/clusters/{cluster_id}/topics/{topic_name}/partitions")
def list_partitions(cluster: Cluster, topic_name: TopicName) -> ResourceList[PartitionData]:
    """List the partitions of a topic."""
    partitions = cluster.admin.describe_topic(topic_name).partitions
    return ResourceList(
        kind="KafkaPartitionList",
        metadata=ListMetadata(self_url=cluster.links.url("topics", topic_name, "partitions")),
        data=[PartitionData.of(info, topic_name, cluster.cluster_id, cluster.links) for info in partitions],
    )


@router.get("/clusters/{cluster_id}/topics/{topic_name}/partitions/{partition_id}")
def get_partition(cluster: Cluster, topic_name: TopicName, partition_id: PartitionId) -> PartitionData:
    """Describe one partition."""
    info = _partition(cluster, topic_name, partition_id)
    return PartitionData.of(info, topic_name, cluster.cluster_id, cluster.links)


@router.get("/clusters/{cluster_id}/topics/{topic_name}/partitions/{partition_id}/replicas")
def list_replicas(cluster: Cluster, topic_name: TopicName, partition_id: PartitionId) -> ResourceList[ReplicaData]:
    """List the replicas of a partition."""
    info = _partition(cluster, topic_name, partition_id)
    url = cluster.links.url("topics", topic_name, "partitions", partition_id, "replicas")
    return ResourceList(
        kind="KafkaReplicaList",
        metadata=ListMetadata(self_url=url),
        data=[ReplicaData.of(info, b, topic_name, cluster.cluster_id, cluster.links) for b in info.replicas],
    )


@router.get("/clusters/{cluster_id}/topics/{topic_name}/partitions/{partition_id}/replicas/{broker_id}")
def get_replica(cluster: Cluster, topic_name: TopicName, partition_id: PartitionId, broker_id: BrokerId) -> ReplicaData:
    """Describe one replica of a partition."""
    info = _partition(cluster, topic_name, partition_id)
    if broker_id not in info.replicas:
        raise TopicAdminError(
            ErrorCode.UNKNOWN_BROKER,
            f"partition {partition_id} of topic {topic_name!r} has no replica on broker {broker_id}",
        )
    return ReplicaData.of(info, broker_id, topic_name, cluster.cluster_id, cluster.links)
