"""`/clusters/{cluster_id}/topics`: list, create, describe, grow, delete."""

from __future__ import annotations

from fastapi import APIRouter, Response

from headwater.api.access import Cluster, TopicName
from headwater.api.json_route import JsonRoute
from headwater.api.schemas.resource import ListMetadata, ResourceList
from headwater.api.schemas.topics import CreateTopicBody, TopicData, UpdatePartitionsBody

router = APIRouter(tags=["topics"], route_class=JsonRoute)


@router.get("/clusters/{cluster_id}/topics")
def list_topics(cluster: Cluster) -> ResourceList[TopicData]:
    """List all topics, internal topics included."""
    return ResourceList(
        kind="KafkaTopicList",
        metadata=ListMetadata(self_url=cluster.links.url("topics")),
        data=[TopicData.of(topic, cluster.cluster_id, cluster.links) for topic in cluster.admin.list_topics()],
    )


@router.post("/clusters/{cluster_id}/topics", status_code=201)
def create_topic(cluster: Cluster, body: CreateTopicBody, response: Response) -> TopicData:
    """Create a topic (201); with `validate_only`, only validate the request (200)."""
    request = body.to_request()
    created = cluster.admin.create_topic(request, validate_only=body.validate_only)
    if created is None:
        response.status_code = 200
        assignment = request.replica_assignment
        partitions = len(assignment) if assignment else request.partitions_count or 0
        replicas = len(assignment[0]) if assignment else request.replication_factor or 0
        return TopicData.planned(request.name, partitions, replicas, cluster.cluster_id, cluster.links)
    data = TopicData.of(created, cluster.cluster_id, cluster.links)
    response.headers["Location"] = data.metadata.self_url
    return data


@router.get("/clusters/{cluster_id}/topics/{topic_name}")
def get_topic(cluster: Cluster, topic_name: TopicName) -> TopicData:
    """Describe one topic."""
    return TopicData.of(cluster.admin.describe_topic(topic_name), cluster.cluster_id, cluster.links)


@router.patch("/clusters/{cluster_id}/topics/{topic_name}")
def update_partitions_count(cluster: Cluster, topic_name: TopicName, body: UpdatePartitionsBody) -> TopicData:
    """Raise the number of partitions."""
    topic = cluster.admin.create_partitions(topic_name, body.partitions_count, validate_only=body.validate_only)
    return TopicData.of(topic, cluster.cluster_id, cluster.links)


@router.delete("/clusters/{cluster_id}/topics/{topic_name}", status_code=204)
def delete_topic(cluster: Cluster, topic_name: TopicName) -> None:
    """Delete a topic with its data."""
    cluster.admin.delete_topics([topic_name])
