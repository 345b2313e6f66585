"""DescribeLogDirs: the folders of `log.dirs`, their replicas, the space of their file systems (KIP-113, 827)."""

import os
from typing import Any

from headwater.logtier.handlers.context import RequestContext
from headwater.logtier.protocol.errors import ErrorCode
from headwater.logtier.protocol.topic_partition import TopicPartition
from headwater.logtier.replication.log_dirs import LogDirDescription, ReplicaOnDisk
from headwater.logtier.security.operations import AclOperation, ResourceType

API_KEY = 35
VERSIONS = (1, 4)


def handle(request: Any, context: RequestContext) -> dict[str, Any]:
    """List every folder, also those without any requested partition; an offline folder has an error."""
    if not context.is_authorized(AclOperation.describe, ResourceType.cluster):
        return {"error_code": ErrorCode.cluster_authorization_failed, "results": []}
    wanted = None
    if request.topics is not None:
        wanted = {TopicPartition(topic.topic, index) for topic in request.topics for index in topic.partitions}
    found = context.services.replica_manager.log_dirs.describe(wanted)
    return {"error_code": ErrorCode.none, "results": [_directory(directory) for directory in found]}


def _directory(directory: LogDirDescription) -> dict[str, Any]:
    topics: dict[str, list[ReplicaOnDisk]] = {}
    for replica in directory.replicas:
        topics.setdefault(replica.topic_partition.topic, []).append(replica)
    return {
        "error_code": directory.error_code,
        "log_dir": os.path.abspath(directory.path),
        "topics": [
            {
                "name": name,
                "partitions": [
                    {
                        "partition_index": replica.topic_partition.partition,
                        "partition_size": replica.size_bytes,
                        "offset_lag": replica.offset_lag,
                        "is_future_key": replica.is_future,
                    }
                    for replica in replicas
                ],
            }
            for name, replicas in topics.items()
        ],
        "total_bytes": directory.total_bytes,
        "usable_bytes": directory.usable_bytes,
    }
