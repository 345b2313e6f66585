"""AddPartitionsToTxn: adds partitions to a transaction before the first write to them.

Versions up to 3 come from producers (before transaction.version 2), one transaction per request. Versions 4 and 5 come
from brokers, for batches of their clients: several transactions, to be extended or only verified (KIP-890).
"""

import asyncio
import logging
from collections.abc import Iterable
from typing import Any

from headwater.logtier.handlers.context import RequestContext
from headwater.logtier.metadata.topic_names import INTERNAL_TOPICS
from headwater.logtier.protocol.errors import ErrorCode, KafkaError
from headwater.logtier.protocol.topic_partition import TopicPartition
from headwater.logtier.security.operations import AclOperation, ResourceType
from headwater.logtier.transaction.metadata import (
    TRANSACTION_VERSION_CLASSIC,
    ProducerIdAndEpoch,
)
from headwater.logtier.transaction.verifier import VerifiedPartition

API_KEY = 24
VERSIONS = (0, 5)

#: Several transactions in one request, sent by brokers.
_BATCHED_FROM = 4
#: Earlier versions report a fenced producer as INVALID_PRODUCER_EPOCH.
_FENCED_FROM = 2


async def handle(request: Any, context: RequestContext) -> dict[str, Any]:
    """Add the partitions of each transaction, all or none."""
    if context.api_version >= _BATCHED_FROM:
        context.require_cluster(AclOperation.cluster_action)
        answers = await asyncio.gather(
            *(
                _transaction(
                    each.transactional_id,
                    ProducerIdAndEpoch(each.producer_id, each.producer_epoch),
                    each.topics,
                    context,
                    verify_only=each.verify_only,
                )
                for each in request.transactions
            )
        )
        results = [
            {"transactional_id": each.transactional_id, "topic_results": answer}
            for each, answer in zip(request.transactions, answers, strict=True)
        ]
        return {"error_code": ErrorCode.none, "results_by_transaction": results}
    results = await _transaction(
        request.v3_and_below_transactional_id,
        ProducerIdAndEpoch(request.v3_and_below_producer_id, request.v3_and_below_producer_epoch),
        request.v3_and_below_topics,
        context,
        verify_only=False,
    )
    return {"results_by_topic_v3_and_below": results}


async def _transaction(
    transactional_id: str,
    producer: ProducerIdAndEpoch,
    topics: Iterable[Any],
    context: RequestContext,
    *,
    verify_only: bool,
) -> list[dict[str, Any]]:
    wanted = [TopicPartition(topic.name, index) for topic in topics for index in topic.partitions]
    is_from_client = context.api_version < _BATCHED_FROM
    if is_from_client and not context.is_authorized(
        AclOperation.write, ResourceType.transactional_id, transactional_id
    ):
        return _results(dict.fromkeys(wanted, ErrorCode.transactional_id_authorization_failed))
    errors = {key: _problem(key, context, is_from_client=is_from_client) for key in wanted}
    if any(errors.values()):
        # A partition that cannot be added prevents the others.
        return _results({key: code or ErrorCode.operation_not_attempted for key, code in errors.items()})
    partitions = frozenset(wanted)
    transactions = context.services.transactions
    try:
        if verify_only:
            missing = transactions.verify_partitions(transactional_id, producer, partitions)
            return _results(
                {key: ErrorCode.transaction_abortable if key in missing else ErrorCode.none for key in wanted}
            )
        if is_from_client:
            await transactions.add_partitions(
                transactional_id, producer, partitions, client_version=TRANSACTION_VERSION_CLASSIC
            )
        else:
            # Written together with what other leaders add at the same time.
            added = [VerifiedPartition(transactional_id, *producer, key, adds=True) for key in wanted]
            await asyncio.gather(*filter(None, map(transactions.verify_partition, added)))
    except KafkaError as error:
        context.log_refusal("AddPartitionsToTxn", error, logging.INFO)
        code = error.code
        if code is ErrorCode.producer_fenced and context.api_version < _FENCED_FROM:
            code = ErrorCode.invalid_producer_epoch
        return _results(dict.fromkeys(wanted, code))
    return _results(dict.fromkeys(wanted, ErrorCode.none))


def _problem(topic_partition: TopicPartition, context: RequestContext, *, is_from_client: bool) -> ErrorCode:
    """Return the error of a partition that cannot be part of a transaction, or `none`."""
    name, index = topic_partition
    if is_from_client and (
        name in INTERNAL_TOPICS or not context.is_authorized(AclOperation.write, ResourceType.topic, name)
    ):
        return ErrorCode.topic_authorization_failed
    topic = context.services.metadata.image.topic(name)
    if topic is None or not 0 <= index < len(topic.partitions):
        return ErrorCode.unknown_topic_or_partition
    return ErrorCode.none


def _results(errors: dict[TopicPartition, ErrorCode]) -> list[dict[str, Any]]:
    by_topic: dict[str, list[dict[str, Any]]] = {}
    for (topic, partition), code in errors.items():
        by_topic.setdefault(topic, []).append({"partition_index": partition, "partition_error_code": code})
    return [{"name": name, "results_by_partition": partitions} for name, partitions in by_topic.items()]
