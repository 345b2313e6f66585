"""Consumers that follow the leaders and commit offsets."""

from __future__ import annotations

import asyncio
import itertools
import random
from typing import Any

from headwater.logtier.client.fetch_codec import CompletedFetch, FetchPosition, fetch_request
from headwater.logtier.client.messages import ApiKey, kio_request
from headwater.logtier.protocol.errors import ErrorCode
from headwater.logtier.protocol.topic_partition import TopicPartition
from headwater.logtier.records.batch import decode_records, iterate_batches
from tests.simulation.clients import RETRIABLE, RETRY_S, Brokers, Worker
from tests.simulation.group_offsets import offset_commit, offset_fetch
from tests.simulation.history import CommittedRange, Entry, History, InvariantError

_FETCH, _LIST_OFFSETS = 12, 7
_LATEST = -1


class Consumer(Worker):
    """Reads all partitions from their start, in order, asks for their ends, and commits its offsets in its group."""

    def __init__(
        self,
        name: str,
        brokers: Brokers,
        history: History,
        chance: random.Random,
        partitions: list[TopicPartition],
    ) -> None:
        super().__init__(name, brokers, history, chance, partitions)
        self._positions = dict.fromkeys(partitions, 0)
        self._losses = 0
        self._must_check_commits = False
        self._coordinator: str | None = None

    async def run(self) -> None:
        """Read until `is_ending`."""
        for turn in itertools.count():
            if self.is_ending:
                return
            try:
                if self._must_check_commits or turn % 17 == 0:
                    await self._check_commits()
                await self._fetch()
                if turn % 5 == 0:
                    await self._commit(self.chance.choice(self._partitions))
                if turn % 7 == 0:
                    await self._ask_for_end(self.chance.choice(self._partitions))
            except ConnectionError as error:
                self._must_check_commits = True
                self.note("lost", "consumer", type(error).__name__)
                self.forget_leaders()
                self._coordinator = None
                await asyncio.sleep(self.chance.uniform(*RETRY_S))
            await self.think()

    async def read_to_end(self, ends: dict[TopicPartition, int]) -> None:
        """Read until the position in each partition is at least `ends`."""
        while any(self._positions[key] < end for key, end in ends.items()):
            try:
                await self._fetch()
            except ConnectionError:
                self.forget_leaders()
                await asyncio.sleep(self.chance.uniform(*RETRY_S))

    async def _fetch(self) -> None:
        """Fetch from one leader after the other."""
        if self._losses != self.history.losses:
            # It may have read records that were not acknowledged yet, and are gone.
            self._losses = self.history.losses
            self._positions = dict.fromkeys(self._partitions, 0)
        by_host: dict[str, list[TopicPartition]] = {}
        for key in self._partitions:
            by_host.setdefault(await self.leader(key), []).append(key)
        for host, keys in by_host.items():
            positions = [FetchPosition(*key, self._positions[key], 4_000, self.leader_epoch(key)) for key in keys]
            wait_ms = 200 // len(by_host)
            fetched = await self.ask(
                fetch_request(_FETCH, positions, wait_ms=wait_ms, bytes_min=1, bytes_max=10_000), host
            )
            if self._losses != self.history.losses:
                return
            for each in fetched:
                self._take(each)

    def _take(self, fetched: CompletedFetch) -> None:
        key = TopicPartition(fetched.topic, fetched.partition)
        self.note("fetch", key, fetched.error_code, len(fetched.records), fetched.high_watermark)
        if fetched.error_code == ErrorCode.none:
            self._take_records(key, fetched.records, fetched.high_watermark)
        elif fetched.error_code in RETRIABLE:
            self.forget_leaders()
        else:
            code = ErrorCode(fetched.error_code)
            raise InvariantError(f"{self.name}: {key} at {self._positions[key]}: {code.name}")

    def _take_records(self, key: TopicPartition, records: memoryview, high_watermark: int) -> None:
        for header, batch in iterate_batches(records):
            for record in decode_records(batch):
                expected = self._positions[key]
                if record.offset < expected:
                    continue  # the batch begins before the position
                if record.offset > expected:
                    raise InvariantError(f"{self.name}: {key} skips from offset {expected} to {record.offset}")
                if record.offset >= high_watermark:
                    raise InvariantError(f"{self.name}: {key} shows offset {record.offset} above the high watermark")
                assert record.value is not None
                self.history.see(key, record.offset, Entry(header.partition_leader_epoch, record.value.rstrip()))
                self._positions[key] = record.offset + 1

    async def _ask_for_end(self, key: TopicPartition) -> None:
        """Ask for the end of a partition: it never falls, from one leader epoch to the next neither."""
        host, epoch = await self.leader(key), self.leader_epoch(key)
        partition = {"partition_index": key.partition, "current_leader_epoch": epoch, "timestamp": _LATEST}
        values = {
            "replica_id": -1,
            "isolation_level": 0,
            "topics": ({"name": key.topic, "partitions": (partition,)},),
        }
        losses = self.history.losses
        told = self.history.ends_told(key)
        answer: Any = await self.ask(kio_request(ApiKey.LIST_OFFSETS, _LIST_OFFSETS, values), host)
        found = answer.topics[0].partitions[0]
        code, end, epoch = int(found.error_code), int(found.offset), int(found.leader_epoch)
        self.note("end", key, code, end, epoch)
        if code == ErrorCode.none:
            if losses == self.history.losses:
                self.history.tell_end(key, epoch, end, told)
        elif code in RETRIABLE:
            self.forget_leaders()
        else:
            raise InvariantError(f"{self.name}: the end of {key} is not told: {ErrorCode(code).name}")

    # -- commits

    async def _coordinated(self) -> str:
        if self._coordinator is None:
            self._coordinator = await self.coordinator(self.name)
        return self._coordinator

    async def _commit(self, key: TopicPartition) -> None:
        host = await self._coordinated()
        commits = self.history.commits.setdefault((self.name, key), CommittedRange())
        offset = max(self._positions[key], commits.attempted)
        commits.attempted = offset
        losses = self.history.group_losses
        answer: Any = await self.ask(offset_commit(self.name, key, offset), host)
        code = int(answer.topics[0].partitions[0].error_code)
        self.note("commit", key, offset, code)
        if code == ErrorCode.none:
            self.note("committed", key, offset)
            if losses == self.history.group_losses or not self.history.may_lose:
                commits.acknowledged = max(commits.acknowledged, offset)
        elif code not in RETRIABLE:
            raise InvariantError(f"{self.name}: the commit of {key} was refused: {ErrorCode(code).name}")
        elif code in (ErrorCode.coordinator_not_available, ErrorCode.not_coordinator):
            self._coordinator = None

    async def _check_commits(self) -> None:
        host = await self._coordinated()
        known = {key: commits.acknowledged for key, commits in self.history.commits.items()}
        losses = self.history.group_losses
        answer: Any = await self.ask(offset_fetch(self.name, self._partitions), host)
        code = int(answer.error_code)
        if code:
            if code not in RETRIABLE:
                raise InvariantError(f"{self.name}: OffsetFetch failed: {answer.error_code}")
            if code in (ErrorCode.coordinator_not_available, ErrorCode.not_coordinator):
                self._coordinator = None
            return
        for topic in answer.topics:
            for each in topic.partitions:
                key = TopicPartition(str(topic.name), int(each.partition_index))
                if (self.name, key) in known and not each.error_code and losses == self.history.group_losses:
                    self.history.check_committed(self.name, key, int(each.committed_offset))
        self._must_check_commits = False
