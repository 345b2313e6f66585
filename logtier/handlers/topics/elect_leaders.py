"""ElectLeaders: elects preferred replicas, or any replica where there is no leader (KIP-183, KIP-460).

The folder of a log that is offline on this broker counts as a leader that is away: no election helps there.
"""

from collections.abc import Iterable
from typing import Any, Final

from headwater.logtier.controller.leader_elections import LeaderElectionResult
from headwater.logtier.handlers.context import RequestContext
from headwater.logtier.protocol.errors import ErrorCode, KafkaError
from headwater.logtier.protocol.topic_partition import TopicPartition
from headwater.logtier.security.operations import AclOperation, ResourceType

API_KEY = 43
VERSIONS = (0, 2)
#: The controller answers.
IS_FORWARDED = True

_PREFERRED = 0
_UNCLEAN = 1

#: The first version with an election type; earlier ones elect the preferred replica.
_TYPED_FROM = 1

_NO_REPLICA: Final = {
    _PREFERRED: KafkaError(ErrorCode.preferred_leader_not_available, "The preferred leader was not available."),
    _UNCLEAN: KafkaError(ErrorCode.eligible_leaders_not_available, "No replica of the partition can lead it."),
}


async def handle(request: Any, context: RequestContext) -> dict[str, Any]:
    """Elect a leader of each partition, or tell why none was elected; of all partitions (null) where it is needed."""
    election_type = getattr(request, "election_type", _PREFERRED) if context.api_version >= _TYPED_FROM else _PREFERRED
    asked = None
    if request.topic_partitions is not None:
        asked = [TopicPartition(each.topic, index) for each in request.topic_partitions for index in each.partitions]
    refusal: KafkaError | None = None
    if not context.is_authorized(AclOperation.alter, ResourceType.cluster):
        refusal = KafkaError(ErrorCode.cluster_authorization_failed, "Cluster authorization failed.")
    elif election_type not in (_PREFERRED, _UNCLEAN):
        refusal = KafkaError(ErrorCode.invalid_request, f"Unknown election type {election_type}")
    if refusal is not None:
        return _answer(refusal.code, [LeaderElectionResult(each, refusal) for each in asked or ()])
    results = await context.services.controller.elect_leaders(asked, is_unclean=election_type == _UNCLEAN)
    return _answer(ErrorCode.none, [*_of_offline_logs(results, asked, election_type, context)])


def _of_offline_logs(
    results: Iterable[LeaderElectionResult],
    asked: list[TopicPartition] | None,
    election_type: int,
    context: RequestContext,
) -> Iterable[LeaderElectionResult]:
    """Yield the results, with an error for partitions whose leader is here and has its log offline."""
    if not context.services.replica_manager.has_offline:
        yield from results
        return
    answered = {result.topic_partition: result for result in results}
    topics = context.services.metadata.image.topics
    if asked is None:
        asked = [TopicPartition(name, index) for name in topics for index in range(len(topics[name].partitions))]
    for key in dict.fromkeys(asked):
        if _is_led_offline(key, context):
            yield LeaderElectionResult(key, _NO_REPLICA[election_type].without_traceback())
        elif key in answered:
            yield answered[key]


def _is_led_offline(key: TopicPartition, context: RequestContext) -> bool:
    services = context.services
    topic = services.metadata.image.topic(key.topic)
    if topic is None or not 0 <= key.partition < len(topic.partitions):
        return False
    return topic.partitions[key.partition].leader in services.replica_manager.offline_replicas(*key)


def _answer(error_code: ErrorCode, results: Iterable[LeaderElectionResult]) -> dict[str, Any]:
    by_topic: dict[str, list[dict[str, Any]]] = {}
    for result in results:
        topic, partition = result.topic_partition
        by_topic.setdefault(topic, []).append(
            {
                "partition_id": partition,
                "error_code": ErrorCode.none if result.error is None else result.error.code,
                "error_message": None if result.error is None else result.error.message,
            }
        )
    return {
        "error_code": error_code,
        "replica_election_results": [
            {"topic": topic, "partition_result": partitions} for topic, partitions in by_topic.items()
        ],
    }
