"""AssignReplicasToDirs: a broker reports in which log folders its replicas are (KIP-858).

A folder that fails then costs the leaderships in it, and a replica in it is elected no more.
"""

from typing import Any

from headwater.logtier.controller.replica_directories import ReplicaDirectory
from headwater.logtier.handlers.context import RequestContext
from headwater.logtier.protocol import uuids
from headwater.logtier.protocol.errors import ErrorCode

API_KEY = 73
VERSIONS = (0, 0)


async def handle(request: Any, context: RequestContext) -> dict[str, Any]:
    """Note the folder of each replica; the code of one that is not the sender's is its own."""
    context.require_broker()
    places = [
        ReplicaDirectory(uuids.to_text(directory.id_ or uuids.ZERO), topic.topic_id, partition.partition_index)
        for directory in request.directories
        for topic in directory.topics
        for partition in topic.partitions
    ]
    codes = iter(await context.services.controller.assign_directories(request.broker_id, request.broker_epoch, places))
    return {
        "error_code": ErrorCode.none,
        "directories": [
            {
                "id_": directory.id_,
                "topics": [
                    {
                        "topic_id": topic.topic_id,
                        "partitions": [
                            {"partition_index": partition.partition_index, "error_code": next(codes)}
                            for partition in topic.partitions
                        ],
                    }
                    for topic in directory.topics
                ],
            }
            for directory in request.directories
        ],
    }
