"""AlterPartition: a leader asks the controller for another ISR of its partitions (KIP-497).

Only version 3 is served: it names topics by id (KIP-841) and members with their broker epochs (KIP-903).
"""

from typing import Any

from headwater.logtier.controller.alter_partition import AlterationResult, PartitionAlteration
from headwater.logtier.handlers.context import RequestContext
from headwater.logtier.metadata.topic_nodes import NO_BROKER
from headwater.logtier.protocol.errors import ErrorCode

API_KEY = 56
VERSIONS = (3, 3)

_RECOVERING = 1


async def handle(request: Any, context: RequestContext) -> dict[str, Any]:
    """Change each partition or refuse the change, and answer with the state that the metadata has then."""
    context.require_broker()
    alterations = [
        PartitionAlteration(
            topic.topic_id,
            partition.partition_index,
            partition.leader_epoch,
            partition.partition_epoch,
            tuple((member.broker_id, member.broker_epoch) for member in partition.new_isr_with_epochs),
            is_recovering=partition.leader_recovery_state == _RECOVERING,
        )
        for topic in request.topics
        for partition in topic.partitions
    ]
    results = iter(
        await context.services.controller.alter_partitions(request.broker_id, request.broker_epoch, alterations)
    )
    return {
        "error_code": ErrorCode.none,
        "topics": [
            {"topic_id": topic.topic_id, "partitions": [_answer(next(results)) for _ in topic.partitions]}
            for topic in request.topics
        ],
    }


def _answer(result: AlterationResult) -> dict[str, Any]:
    state = result.state
    if state is None:
        # Without the state: a leader that is behind waits for the metadata in any case.
        return {
            "partition_index": result.partition,
            "error_code": result.error_code,
            "leader_id": NO_BROKER,
            "leader_epoch": -1,
            "partition_epoch": -1,
        }
    return {
        "partition_index": result.partition,
        "error_code": ErrorCode.none,
        "leader_id": state.leader,
        "leader_epoch": state.leader_epoch,
        "isr": state.isr,
        "leader_recovery_state": int(state.is_recovering),
        "partition_epoch": state.partition_epoch,
    }
