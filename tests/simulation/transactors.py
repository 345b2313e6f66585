"""Transactional producers, one transactional id each (KIP-98, KIP-890), and the reader of what they commit."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from headwater.logtier.client.connection import Request
from headwater.logtier.client.fetch_codec import READ_COMMITTED, CompletedFetch, FetchPosition, fetch_request
from headwater.logtier.client.messages import ApiKey, kio_request
from headwater.logtier.client.produce_codec import ProducedPartition, produce_request
from headwater.logtier.protocol.errors import ErrorCode
from headwater.logtier.protocol.topic_partition import TopicPartition
from headwater.logtier.records.batch import (
    TRANSACTIONAL,
    Record,
    build_batch,
    decode_end_transaction_marker,
    decode_records,
    iterate_batches,
)
from tests.simulation.clients import GROUP_KEY, RETRIABLE, RETRY_S, TRANSACTION_KEY, Brokers, Worker
from tests.simulation.coordinated_worker import WAIT, CoordinatedWorker
from tests.simulation.group_offsets import offset_fetch, retried_if_unstable
from tests.simulation.history import History, InvariantError
from tests.simulation.ledger import Ledger, SimulatedTransaction, TransactionOutcome
from tests.simulation.node import START_MS

_PRODUCE, _INIT_PRODUCER_ID, _END_TXN, _TXN_OFFSET_COMMIT, _FETCH = 12, 4, 5, 5, 12
#: Longer than a broker is away, shorter than a run: the coordinator ends what its producer has left.
TRANSACTION_TIMEOUT = timedelta(seconds=15)
ABORT_RATIO, OFFSETS_RATIO, TRANSIENT_RATIO = 0.25, 0.5, 0.5
#: Attempts to reach a topic that may be deleted.
_ATTEMPTS = 5
#: The coordinator has ended the transaction, after its timeout.
_FENCED = {ErrorCode.producer_fenced, ErrorCode.invalid_producer_epoch}
#: Errors of brokers that have forgotten what they had acknowledged.
_FORGOTTEN = {
    ErrorCode.invalid_producer_id_mapping,
    ErrorCode.out_of_order_sequence_number,
    ErrorCode.unknown_producer_id,
}


class TransactionEndedError(Exception):
    """The coordinator has ended the transaction, or it can only be aborted."""


class Transactor(CoordinatedWorker):
    """Begins one transaction after the other, and commits or aborts it; some commit an offset of its group, too.

    Args:
        transient: A partition of a topic that is deleted time and again, which some transactions write to, and of
            which they commit an offset. Nobody reads what they write there.
    """

    def __init__(
        self,
        name: str,
        brokers: Brokers,
        history: History,
        chance: random.Random,
        partitions: list[TopicPartition],
        ledger: Ledger,
        numbers: Iterator[int],
        transient: TopicPartition | None = None,
    ) -> None:
        super().__init__(name, brokers, history, chance, partitions)
        self._ledger = ledger
        self._numbers = numbers
        self._transient = transient
        self._producer: tuple[int, int] | None = None
        self._sequences: dict[TopicPartition, int] = {}

    async def run(self) -> None:
        """Work until `is_ending`."""
        while not self.is_ending:
            if self._producer is None:
                await self._initialise()
            await self._transaction()
            if self.chance.random() < OFFSETS_RATIO:
                await self.check_offset()
            await self.think()

    async def _transaction(self) -> None:
        transaction = self._ledger.begin(self.name)
        try:
            for _ in range(self.chance.randint(1, 4)):
                await self._send(transaction, self.chance.choice(self._partitions))
                await self.think()
            if self._transient is not None and self.chance.random() < TRANSIENT_RATIO:
                await self._write_to_transient(self._transient)
            if self.chance.random() < OFFSETS_RATIO:
                transaction.commits_offset = True
                await self._commit_offset(transaction)
            await self._end(transaction, commit=self.chance.random() >= ABORT_RATIO)
        except TransactionEndedError:
            # Without a commit under way nobody commits it.
            if transaction.outcome is TransactionOutcome.OPEN:
                transaction.outcome = TransactionOutcome.ABORTED
            self._producer = None

    # -- requests

    async def _initialise(self) -> None:
        values = {
            "transactional_id": self.name,
            "transaction_timeout": TRANSACTION_TIMEOUT,
            "producer_id": -1,
            "producer_epoch": -1,
        }
        answer: Any = await self._ask(
            TRANSACTION_KEY,
            lambda: kio_request(ApiKey.INIT_PRODUCER_ID, _INIT_PRODUCER_ID, values),
            lambda answer: int(answer.error_code),
            "begin",
        )
        if answer.error_code:
            raise InvariantError(f"{self.name}: InitProducerId failed: {ErrorCode(int(answer.error_code)).name}")
        self._become(int(answer.producer_id), int(answer.producer_epoch))

    def _become(self, producer_id: int, epoch: int) -> None:
        self._producer = producer_id, epoch
        self._sequences.clear()

    async def _send(self, transaction: SimulatedTransaction, key: TopicPartition) -> None:
        values = [b"%d" % next(self._numbers) for _ in range(self.chance.randint(1, 3))]
        sequence = self._sequences.get(key, 0)
        batch = self._batch(values, sequence)
        for value in values:
            self._ledger.send(transaction, key, value)
        [produced] = await self.until_answered(
            lambda: self._produce_request(key, batch),
            lambda answer: self._retried(answer[0].error_code),
            "send",
            key,
        )
        self._check(produced.error_code, f"{key} refused a batch")
        self._sequences[key] = sequence + len(values)
        transaction.acknowledged.update(values)

    def _batch(self, values: list[bytes], sequence: int) -> bytes:
        assert self._producer is not None
        now_ms = START_MS + int(self._loop.time() * 1000)
        return build_batch(
            [Record(None, value, now_ms) for value in values],
            producer_id=self._producer[0],
            producer_epoch=self._producer[1],
            base_sequence=sequence,
            attributes=TRANSACTIONAL,
        )

    def _produce_request(self, key: TopicPartition, batch: bytes) -> Request[list[ProducedPartition]]:
        return produce_request(
            _PRODUCE, {key.topic: [(key.partition, batch)]}, timeout_ms=2_000, transactional_id=self.name
        )

    async def _write_to_transient(self, key: TopicPartition) -> None:
        """Send a batch, and commit an offset; the topic may go, or be another one of its name, in the middle."""
        batch = self._batch([b"%d" % next(self._numbers)], 0)
        for _ in range(_ATTEMPTS):
            try:
                [produced] = await self.ask(self._produce_request(key, batch), await self.leader(key))
            except ConnectionError as error:
                self.note("lost", "transient", type(error).__name__)
            else:
                self.note("transient", produced.error_code)
                if produced.error_code not in WAIT:
                    self._check(produced.error_code, f"{key} refused a batch")
                    break
            self.forget_leaders()
            await asyncio.sleep(self.chance.uniform(*RETRY_S))
        answer: Any = await self._ask(
            GROUP_KEY,
            lambda: self._offset_request(key, 1),
            lambda answer: int(answer.topics[0].partitions[0].error_code),
            "transient offset",
            _ATTEMPTS,
        )
        if answer is not None:
            self._check(int(answer.topics[0].partitions[0].error_code), "the offset was refused")

    async def _commit_offset(self, transaction: SimulatedTransaction) -> None:
        answer: Any = await self._ask(
            GROUP_KEY,
            lambda: self._offset_request(self._partitions[0], transaction.number),
            lambda answer: int(answer.topics[0].partitions[0].error_code),
            "offset",
        )
        self._check(int(answer.topics[0].partitions[0].error_code), "the offset was refused")

    def _offset_request(self, key: TopicPartition, offset: int) -> Request[Any]:
        partition = {
            "partition_index": key.partition,
            "committed_offset": offset,
            "committed_leader_epoch": -1,
            "committed_metadata": None,
        }
        values = {
            **self._fields(),
            "group_id": self.name,
            "generation_id": -1,
            "member_id": "",
            "group_instance_id": None,
            "topics": ({"name": key.topic, "partitions": (partition,)},),
        }
        return kio_request(ApiKey.TXN_OFFSET_COMMIT, _TXN_OFFSET_COMMIT, values)

    async def _end(self, transaction: SimulatedTransaction, *, commit: bool) -> None:
        if commit:
            transaction.outcome = TransactionOutcome.UNKNOWN
        values = {**self._fields(), "committed": commit}
        answer: Any = await self._ask(
            TRANSACTION_KEY,
            lambda: kio_request(ApiKey.END_TXN, _END_TXN, values),
            lambda answer: int(answer.error_code),
            "commit" if commit else "abort",
        )
        if answer.error_code == ErrorCode.invalid_txn_state and commit:
            # As in Kafka: the coordinator has aborted it after its timeout.
            self.note("ended by others", int(answer.error_code))
            raise TransactionEndedError
        self._check(int(answer.error_code), f"{transaction} cannot end")
        transaction.outcome = TransactionOutcome.COMMITTED if commit else TransactionOutcome.ABORTED
        self.note("ended", transaction.number, commit)
        self._become(int(answer.producer_id), int(answer.producer_epoch))

    async def check_offset(self) -> None:
        """The group has the offset of the last transaction that committed one."""
        key = self._partitions[0]
        losses = self.history.group_losses
        answer: Any = await self._ask(
            GROUP_KEY,
            lambda: offset_fetch(self.name, [key], require_stable=True),
            lambda answer: retried_if_unstable(answer.error_code or answer.topics[0].partitions[0].error_code),
            "offsets",
        )
        if answer.error_code:
            raise InvariantError(f"{self.name}: OffsetFetch failed: {answer.error_code}")
        found, possible = int(answer.topics[0].partitions[0].committed_offset), self.possible_offsets()
        if losses == self.history.group_losses and found not in possible and not self.history.has_lost:
            raise InvariantError(f"group {self.name} has offset {found}, possible are {sorted(possible)}")

    def possible_offsets(self) -> set[int]:
        """The offsets that the group may have now."""
        return self._ledger.possible_offsets(self.name)

    def _fields(self) -> dict[str, Any]:
        assert self._producer is not None
        return {
            "transactional_id": self.name,
            "producer_id": self._producer[0],
            "producer_epoch": self._producer[1],
        }

    def _check(self, code: int, what: str) -> None:
        if code in _FENCED or code == ErrorCode.transaction_abortable or (code in _FORGOTTEN and self.history.has_lost):
            self.note("ended by others", code)
            raise TransactionEndedError
        if code:
            raise InvariantError(f"{self.name}: {what}: {ErrorCode(code).name}")

    @staticmethod
    def _retried(code: int) -> int:
        return int(ErrorCode.request_timed_out) if code in WAIT else code


class CommittedReader(Worker):
    """Reads the committed records of all partitions in order, and keeps what it saw in the ledger."""

    def __init__(
        self,
        name: str,
        brokers: Brokers,
        history: History,
        chance: random.Random,
        partitions: list[TopicPartition],
        ledger: Ledger,
    ) -> None:
        super().__init__(name, brokers, history, chance, partitions)
        self._ledger = ledger
        self._positions = dict.fromkeys(partitions, 0)

    async def run(self) -> None:
        """Read until `is_ending`."""
        while not self.is_ending:
            await self._turn(self.chance.choice(self._partitions))
            await self.think()

    async def read_to_end(self, ends: dict[TopicPartition, int]) -> None:
        """Read up to `ends`: all transactions before them have ended."""
        while behind := [key for key, end in ends.items() if self._positions[key] < end]:
            await self._turn(behind[0])

    async def _turn(self, key: TopicPartition) -> None:
        try:
            host = await self.leader(key)
            position = FetchPosition(*key, self._positions[key], 10_000, self.leader_epoch(key))
            request = fetch_request(
                _FETCH, [position], wait_ms=200, bytes_min=1, bytes_max=10_000, isolation_level=READ_COMMITTED
            )
            [fetched] = await self.ask(request, host)
        except ConnectionError as error:
            self.note("lost", "committed", type(error).__name__)
            self.forget_leaders()
            await asyncio.sleep(self.chance.uniform(*RETRY_S))
            return
        self.note("committed", key, fetched.error_code, len(fetched.records), fetched.last_stable_offset)
        if fetched.error_code == ErrorCode.none:
            self._take(key, fetched)
        elif fetched.error_code in RETRIABLE or self.history.has_lost:
            self.forget_leaders()
        else:
            code = ErrorCode(fetched.error_code)
            raise InvariantError(f"{self.name}: {key} at {self._positions[key]}: {code.name}")

    def _take(self, key: TopicPartition, fetched: CompletedFetch) -> None:
        """Take the records before the last stable offset whose transactions were not aborted (KIP-98)."""
        aborted = sorted(fetched.aborted, key=lambda each: each[1])
        omitted: set[int] = set()
        for header, batch in iterate_batches(fetched.records):
            last = header.base_offset + header.last_offset_delta
            while aborted and aborted[0][1] <= last:
                omitted.add(aborted.pop(0)[0])
            if header.is_control:
                marker = decode_end_transaction_marker(batch)
                if marker is not None and not marker.committed:
                    omitted.discard(header.producer_id)
            elif header.producer_id not in omitted:
                self._see(key, batch, fetched.last_stable_offset)
            self._positions[key] = max(self._positions[key], last + 1)

    def _see(self, key: TopicPartition, batch: memoryview, last_stable_offset: int) -> None:
        for record in decode_records(batch):
            if record.offset < self._positions[key]:
                continue
            if record.offset >= last_stable_offset:
                raise InvariantError(f"{self.name}: {key} shows {record.offset}, above the last stable offset")
            assert record.value is not None
            if not self.history.has_lost:
                self._ledger.see(key, record.offset, record.value)
