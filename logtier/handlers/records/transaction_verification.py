"""Before transactional batches are appended: does the coordinator know of their transaction? (KIP-890)

Without the question, a batch that comes late, after the marker of its transaction, would begin one that nobody ends.
Only a transaction's first batch in a partition is asked about; from then on the partition itself knows.
"""

import asyncio
import struct
from collections.abc import Awaitable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from headwater.logtier.handlers.context import RequestContext
from headwater.logtier.log.producers.producer_state import Verification
from headwater.logtier.protocol.errors import ErrorCode, KafkaError
from headwater.logtier.protocol.topic_partition import TopicPartition
from headwater.logtier.records.batch import ATTRIBUTES, HEADER_BYTES, PRODUCER_ID, TRANSACTIONAL, Buffer

#: Producers of this Produce version on know that a transaction can be aborted and tried again (KIP-1050).
FIRST_VERSION_WITH_ABORTABLE: Final = 11
#: From here on a produce request adds its partitions to the transaction, which has an epoch of its own (KIP-890).
FIRST_VERSION_THAT_ADDS: Final = 12

#: Codes at which an older client would give up; they are told one at which every client tries again.
_PASSING: Final = frozenset(
    {
        ErrorCode.concurrent_transactions,
        ErrorCode.network_exception,
        ErrorCode.coordinator_load_in_progress,
        ErrorCode.coordinator_not_available,
        ErrorCode.not_coordinator,
    }
)
_PRODUCER: Final = struct.Struct(">qhi")


class TransactionVerifier(Protocol):
    """The transaction coordinator, as far as a partition asks it."""

    def verify_partition(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        topic_partition: TopicPartition,
        *,
        add: bool,
    ) -> Awaitable[None] | None:
        """Return, or end, if the producer's transaction is open and includes the partition; raise KafkaError if not.

        With `add` the partition is first added to the transaction, which is begun by that if need be.
        """


#: What may be appended, and what is answered instead of it.
Verdict = Verification | KafkaError
Verdicts = dict[TopicPartition, Verdict]


@dataclass(frozen=True, slots=True)
class _Question:
    topic_partition: TopicPartition
    producer_id: int
    producer_epoch: int
    verification: Verification


def is_transactional(records: Buffer) -> bool:
    """Whether the first batch belongs to a transaction; False if there is none."""
    return len(records) > ATTRIBUTES + 1 and records[ATTRIBUTES + 1] & TRANSACTIONAL != 0


def verify(
    transactional_id: str, batches: Iterable[tuple[TopicPartition, Buffer]], context: RequestContext
) -> Verdicts | Awaitable[Verdicts]:
    """Ask about the transactional ones of a request's batches; nothing is said of those that need no answer.

    Raises:
        KafkaError: invalid_producer_id_mapping if they are of several producers.
    """
    verdicts: Verdicts = {}
    questions: list[_Question] = []
    producers: set[tuple[int, int]] = set()
    adds = context.api_version >= FIRST_VERSION_THAT_ADDS
    for topic_partition, records in batches:
        if len(records) < HEADER_BYTES or not is_transactional(records):
            continue
        producer_id, epoch, sequence = _PRODUCER.unpack_from(records, PRODUCER_ID)
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
    """Ask at once what can be answered at once, and leave only the rest to a coroutine."""
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
    return _await_answers(transactional_id, unanswered, verdicts, context) if unanswered else verdicts


def _ask_once(transactional_id: str, question: _Question, context: RequestContext) -> Awaitable[None] | None:
    verifier: TransactionVerifier = context.services.transactions
    return verifier.verify_partition(
        transactional_id,
        question.producer_id,
        question.producer_epoch,
        question.topic_partition,
        add=context.api_version >= FIRST_VERSION_THAT_ADDS,
    )


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
    """Wait for the answer; a transaction that is still being ended is worth a few questions more."""
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
    """A producer goes on with its next transaction while the markers of the last one are being written."""
    return error.code == ErrorCode.concurrent_transactions and context.api_version >= FIRST_VERSION_THAT_ADDS


def _told(error: KafkaError, context: RequestContext) -> KafkaError:
    """What the client is told, in codes that its version of Produce knows."""
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
