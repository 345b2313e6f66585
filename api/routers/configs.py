"""`/clusters/{cluster_id}/topics/{topic_name}/configs`: read and change topic configs."""

from __future__ import annotations

from fastapi import APIRouter

from headwater.api.access import Cluster, ConfigName, TopicName
from headwater.api.json_route import JsonRoute
from headwater.api.schemas.configs import AlterConfigsBody, TopicConfigData, UpdateConfigBody
from headwater.api.schemas.resource import ListMetadata, ResourceList
from headwater.api.topic_admin import TOPICS_PER_REQUEST_MAX
from headwater.api.topic_model import ConfigChange

router = APIRouter(tags=["configs"], route_class=JsonRoute)


@router.get("/clusters/{cluster_id}/topics/-/configs")
def list_all_configs(cluster: Cluster) -> ResourceList[TopicConfigData]:
    """List the configs of all topics."""
    names = [topic.name for topic in cluster.admin.list_topics()]
    data = []
    for start in range(0, len(names), TOPICS_PER_REQUEST_MAX):
        for name, configs in cluster.admin.configs_of(names[start : start + TOPICS_PER_REQUEST_MAX]).items():
            data += [TopicConfigData.of(config, name, cluster.cluster_id, cluster.links) for config in configs]
    url = cluster.links.url("topics", "-", "configs")
    return ResourceList(kind="KafkaTopicConfigList", metadata=ListMetadata(self_url=url), data=data)


@router.get("/clusters/{cluster_id}/topics/{topic_name}/configs")
def list_configs(cluster: Cluster, topic_name: TopicName) -> ResourceList[TopicConfigData]:
    """List the configs of a topic."""
    configs = cluster.admin.configs(topic_name)
    return ResourceList(
        kind="KafkaTopicConfigList",
        metadata=ListMetadata(self_url=cluster.links.url("topics", topic_name, "configs")),
        data=[TopicConfigData.of(config, topic_name, cluster.cluster_id, cluster.links) for config in configs],
    )


@router.post("/clusters/{cluster_id}/topics/{topic_name}/configs:alter", status_code=204)
def alter_configs(cluster: Cluster, topic_name: TopicName, body: AlterConfigsBody) -> None:
    """Set or reset several configs atomically."""
    changes = [entry.to_change() for entry in body.data]
    cluster.admin.alter_configs(topic_name, changes, validate_only=body.validate_only)


@router.get("/clusters/{cluster_id}/topics/{topic_name}/configs/{name}")
def get_config(cluster: Cluster, topic_name: TopicName, name: ConfigName) -> TopicConfigData:
    """Return one config of a topic."""
    config = cluster.admin.config(topic_name, name)
    return TopicConfigData.of(config, topic_name, cluster.cluster_id, cluster.links)


@router.put("/clusters/{cluster_id}/topics/{topic_name}/configs/{name}", status_code=204)
def update_config(cluster: Cluster, topic_name: TopicName, name: ConfigName, body: UpdateConfigBody) -> None:
    """Set one config of a topic."""
    cluster.admin.alter_configs(topic_name, [ConfigChange(name, body.value)])


@router.delete("/clusters/{cluster_id}/topics/{topic_name}/configs/{name}", status_code=204)
def reset_config(cluster: Cluster, topic_name: TopicName, name: ConfigName) -> None:
    """Reset one config of a topic to its default."""
    cluster.admin.config(topic_name, name)  # a name that no topic has is an error, not a silent success
    cluster.admin.alter_configs(topic_name, [ConfigChange(name, None)])
