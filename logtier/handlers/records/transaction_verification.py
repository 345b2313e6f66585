"""Verifies with the coordinator that a transaction is ongoing before its batches are appended (KIP-890).

Without the verification, a batch that arrives after the marker of its transaction would begin a transaction that never
ends. Only the first batch of a transaction in a partition is verified; afterwards the partition has its state.
"""

import asyncio
import functools
from collections.abc import Awaitable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from headwater.logtier.handlers.context import RequestContext
from headwater.logtier.log.producers.producer_state import Verification
from headwater.logtier.protocol.errors import ErrorCode, KafkaError
from headwater.logtier.protocol.topic_partition import TopicPartition
from headwater.logtier.records.batch import (
    ATTRIBUTES,
    HEADER_BYTES,
    PRODUCER_FIELDS,
    PRODUCER_ID,
    TRANSACTIONAL,
    Buffer,
)
from headwater.logtier.runtime.deferred import Deferred
from headwater.logtier.transaction.verifier import VerifiedPartition

#: From this Produce version on producers know TRANSACTION_ABORTABLE (KIP-1050).
FIRST_VERSION_WITH_ABORTABLE: Final = 11
#: From this version on a produce request adds its partitions to the transaction, which has its own epoch (KIP-890).
FIRST_VERSION_THAT_ADDS: Final = 12

#: Transient error codes on which older clients fail; a code that all clients retry is reported instead.
_PASSING: Final = frozenset(
    {
        ErrorCode.concurrent_transactions,
        ErrorCode.network_exception,
        ErrorCode.coordinator_load_in_progress,
        ErrorCode.coordinator_not_available,
        ErrorCode.not_coordinator,
    }
)


#: The verification for the append, or the error of the partition.
Verdict = Verification | KafkaError
Verdicts = dict[TopicPartition, Verdict]


@dataclass(frozen=True, slots=True)
class _Question:
    topic_partition: TopicPartition
    producer_id: int
    producer_epoch: int
    verification: Verification


def is_transactional(records: Buffer) -> bool:
    """Whether the first batch belongs to a transaction; False without a batch."""
    return len(records) > ATTRIBUTES + 1 and records[ATTRIBUTES + 1] & TRANSACTIONAL != 0


def verify(
    transactional_id: str, batches: Iterable[tuple[TopicPartition, Buffer]], context: RequestContext
) -> Verdicts | Awaitable[Verdicts]:
    """Verify the transactional batches of a request; the result omits batches that need no verification.

    Raises:
        KafkaError: invalid_producer_id_mapping for batches of several producers.
    """
    verdicts: Verdicts = {}
    questions: list[_Question] = []
    producers: set[tuple[int, int]] = set()
    adds = context.api_version >= FIRST_VERSION_THAT_ADDS
    for topic_partition, records in batches:
        if len(records) < HEADER_BYTES or not is_transactional(records):
            continue
        producer_id, epoch, sequence = PRODUCER_FIELDS.unpack_from(records, PRODUCER_ID)
        producers.add((producer_id, epoch))
        try:
            verification = context.services.replica_manager.begin_verification(
                topic_partition, producer_id, epoch, sequence, is_epoch_bumped=adds
            )
        except KafkaError as error:
            verdicts[topic_partition] = error.without_traceback()
            continue
        if verification is not None:
            questions.append(_Question(topic_partition, producer_id, epoch, verification))
    if len(producers) > 1:
        raise KafkaError(
            ErrorCode.invalid_producer_id_mapping, "Transactional records contained more than one producer ID"
        )
    if not adds and not context.services.metadata.config.transaction_partition_verification_enable:
        verdicts.update((question.topic_partition, question.verification) for question in questions)
        return verdicts
    return _ask(transactional_id, questions, verdicts, context) if questions else verdicts


def _ask(
    transactional_id: str, questions: Sequence[_Question], verdicts: Verdicts, context: RequestContext
) -> Verdicts | Awaitable[Verdicts]:
    """Verify synchronously where possible, and leave the rest to a coroutine."""
    unanswered: list[tuple[_Question, Awaitable[None] | None]] = []
    for question in questions:
        try:
            answer = _ask_once(transactional_id, question, context)
        except KafkaError as error:
            if _is_worth_a_retry(error, context):
                unanswered.append((question, None))
            else:
                verdicts[question.topic_partition] = _told(error, context)
        else:
            if answer is None:
                verdicts[question.topic_partition] = question.verification
            else:
                unanswered.append((question, answer))
    if not unanswered:
        return verdicts
    return Deferred(functools.partial(_await_answers, transactional_id, unanswered, verdicts, context))


def _ask_once(transactional_id: str, question: _Question, context: RequestContext) -> Awaitable[None] | None:
    adds = context.api_version >= FIRST_VERSION_THAT_ADDS
    verified = VerifiedPartition(
        transactional_id, question.producer_id, question.producer_epoch, question.topic_partition, adds
    )
    return context.services.verifier.verify_partition(verified)


async def _await_answers(
    transactional_id: str,
    unanswered: Sequence[tuple[_Question, Awaitable[None] | None]],
    verdicts: Verdicts,
    context: RequestContext,
) -> Verdicts:
    answers = await asyncio.gather(
        *(_answer(transactional_id, question, answer, context) for question, answer in unanswered)
    )
    verdicts.update(zip((question.topic_partition for question, _ in unanswered), answers, strict=True))
    return verdicts


async def _answer(
    transactional_id: str, question: _Question, answer: Awaitable[None] | None, context: RequestContext
) -> Verdict:
    """Wait for the verification; retry while the previous transaction is being ended."""
    config = context.services.metadata.config
    waited_ms = 0
    if answer is None:
        waited_ms = config.add_partitions_to_txn_retry_backoff_ms
        await asyncio.sleep(waited_ms / 1000)
    while True:
        try:
            if answer is None:
                answer = _ask_once(transactional_id, question, context)
            if answer is not None:
                await answer
        except KafkaError as error:
            if not _is_worth_a_retry(error, context) or waited_ms >= config.add_partitions_to_txn_retry_backoff_max_ms:
                return _told(error, context)
            answer = None
            waited_ms += config.add_partitions_to_txn_retry_backoff_ms
            await asyncio.sleep(config.add_partitions_to_txn_retry_backoff_ms / 1000)
        else:
            return question.verification


def _is_worth_a_retry(error: KafkaError, context: RequestContext) -> bool:
    """Whether to retry: a producer begins its next transaction while the markers of the last one are being written."""
    return error.code == ErrorCode.concurrent_transactions and context.api_version >= FIRST_VERSION_THAT_ADDS


def _told(error: KafkaError, context: RequestContext) -> KafkaError:
    """Return the error for the client, with a code known to its version of Produce."""
    code = error.code
    if code == ErrorCode.producer_fenced:
        return KafkaError(ErrorCode.invalid_producer_epoch, error.message)
    if code == ErrorCode.transaction_abortable and context.api_version < FIRST_VERSION_WITH_ABORTABLE:
        code = ErrorCode.invalid_txn_state
    if code == ErrorCode.invalid_txn_state:
        return KafkaError(code, "Partition was not added to the transaction")
    if code in _PASSING:
        return KafkaError(
            ErrorCode.not_enough_replicas,
            f"Unable to verify the partition has been added to the transaction. Underlying error: {code.name.upper()}",
        )
    return error.without_traceback()
