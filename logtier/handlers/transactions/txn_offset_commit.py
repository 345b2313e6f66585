"""TxnOffsetCommit: commits a group's offsets as part of a transaction (KIP-98, KIP-447).

The offsets are in the log when the request is answered, and visible when their transaction is committed. From version 5
on (transaction.version 2) the request also adds them to the transaction, as AddOffsetsToTxn did before.
"""

import asyncio
import logging
from typing import Any, Final

from headwater.logtier.group.persistence.offsets import CommittedOffset
from headwater.logtier.handlers.context import RequestContext
from headwater.logtier.handlers.groups.requested_commits import requested_commits
from headwater.logtier.metadata.image import MetadataImage
from headwater.logtier.protocol.errors import ErrorCode, KafkaError
from headwater.logtier.protocol.topic_partition import TopicPartition
from headwater.logtier.records.batch import NO_SEQUENCE
from headwater.logtier.security.operations import AclOperation, ResourceType
from headwater.logtier.transaction.verifier import VerifiedPartition

API_KEY = 28
VERSIONS = (0, 5)

_LEADER_EPOCH_FROM: Final = 2
#: Earlier producers fail on COORDINATOR_LOAD_IN_PROGRESS (KAFKA-7296).
_LOADING_FROM: Final = 2
#: From this version on producers know TRANSACTION_ABORTABLE (KIP-1050).
_ABORTABLE_FROM: Final = 4
#: From this version on the request adds the group's offsets to the transaction.
_ADDS_FROM: Final = 5

_NO_GENERATION: Final = -1
_CODES: Final = {
    ErrorCode.producer_fenced: ErrorCode.invalid_producer_epoch,
    ErrorCode.unknown_topic_or_partition: ErrorCode.coordinator_not_available,
    ErrorCode.not_leader_or_follower: ErrorCode.not_coordinator,
}

#: Errors of the transaction's coordinator that pass.
_PASSING: Final = frozenset(
    {ErrorCode.network_exception, ErrorCode.not_coordinator, ErrorCode.coordinator_not_available}
)


async def handle(request: Any, context: RequestContext) -> dict[str, Any]:
    """Commit the offsets of existing partitions; unknown partitions and too long metadata are rejected separately."""
    requested = requested_commits(
        request,
        context,
        context.services.clock.now_ms(),
        _refusal(request, context),
        has_leader_epoch=context.api_version >= _LEADER_EPOCH_FROM,
    )
    if requested.commits:
        try:
            await _commit(request, requested.commits, context)
        except KafkaError as error:
            context.log_refusal("TxnOffsetCommit", error, logging.INFO)
            requested.refuse(_told(error.code, context))
    return {"topics": requested.answers}


def _refusal(request: Any, context: RequestContext) -> ErrorCode | None:
    """Return the error of the whole request, or None."""
    if not context.is_authorized(AclOperation.write, ResourceType.transactional_id, request.transactional_id):
        return ErrorCode.transactional_id_authorization_failed
    if not context.is_authorized(AclOperation.read, ResourceType.group, request.group_id):
        return ErrorCode.group_authorization_failed
    return None if request.group_id else ErrorCode.invalid_group_id


async def _commit(request: Any, commits: dict[TopicPartition, CommittedOffset], context: RequestContext) -> None:
    services = context.services
    partition = await services.groups.offsets_partition(request.group_id)
    verification = services.replica_manager.begin_verification(
        partition,
        request.producer_id,
        request.producer_epoch,
        NO_SEQUENCE,
        is_epoch_bumped=context.api_version >= _ADDS_FROM,
    )
    if verification is not None:
        await _verify(request, partition, context)
    _check_topics(commits, services.metadata.image)
    await services.groups.transactional.commit(
        request.group_id,
        member_id=getattr(request, "member_id", ""),
        group_instance_id=getattr(request, "group_instance_id", None),
        generation_id=getattr(request, "generation_id", _NO_GENERATION),
        producer_id=request.producer_id,
        producer_epoch=request.producer_epoch,
        commits=commits,
        verification=verification,
    )


def _check_topics(commits: dict[TopicPartition, CommittedOffset], image: MetadataImage) -> None:
    """Check that no topic was deleted during the verification: its offsets are forgotten, and none must follow."""
    for key, committed in commits.items():
        topic = image.topic(key.topic)
        if topic is None or topic.topic_id != committed.topic_id:
            raise KafkaError(ErrorCode.unknown_topic_or_partition, f"topic {key.topic} was deleted meanwhile")


async def _verify(request: Any, partition: TopicPartition, context: RequestContext) -> None:
    """Verify with the transaction coordinator; retry while the previous transaction is being ended."""
    services = context.services
    adds = context.api_version >= _ADDS_FROM
    if not adds and not services.metadata.config.transaction_partition_verification_enable:
        return
    verified = VerifiedPartition(request.transactional_id, request.producer_id, request.producer_epoch, partition, adds)
    waited_ms = 0
    while True:
        try:
            answer = services.verifier.verify_partition(verified)
            if answer is not None:
                await answer
        except KafkaError as error:
            is_passing = adds and error.code is ErrorCode.concurrent_transactions
            if not is_passing or waited_ms >= services.metadata.config.add_partitions_to_txn_retry_backoff_max_ms:
                if error.code in _PASSING:
                    # The client repeats the request, and does not look for the group's coordinator, which is here.
                    raise KafkaError(ErrorCode.coordinator_load_in_progress, error.message) from error
                raise
            waited_ms += services.metadata.config.add_partitions_to_txn_retry_backoff_ms
            await asyncio.sleep(services.metadata.config.add_partitions_to_txn_retry_backoff_ms / 1000)
        else:
            return


def _told(code: ErrorCode, context: RequestContext) -> ErrorCode:
    """Return the error code for the client, known to its version."""
    if code is ErrorCode.transaction_abortable and context.api_version < _ABORTABLE_FROM:
        return ErrorCode.invalid_txn_state
    if code is ErrorCode.coordinator_load_in_progress and context.api_version < _LOADING_FROM:
        return ErrorCode.coordinator_not_available
    return _CODES.get(code, code)
