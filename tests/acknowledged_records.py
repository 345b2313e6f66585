"""A transactional producer and a reader of ours, which run while a test troubles their brokers."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

from headwater.logtier.client.cluster import LATEST, ClientConfig, ClusterClient, parse_bootstrap_servers
from headwater.logtier.client.errors import AbortableTransactionError
from headwater.logtier.client.fetcher import FetchConfig, FetchedRecords, read_partition
from headwater.logtier.client.transactional_producer import TransactionalProducer, TransactionConfig
from headwater.logtier.records.batch import Record, decode_end_transaction_marker, decode_records, iterate_batches
from tests.waiting import until

TOPIC = "flights"
TRANSACTIONAL_ID = "stage"
PARTITIONS = 3
PATIENCE_S = 300
COMMITS_BETWEEN = 5
#: Between two transactions: without it, the brokers would do nothing else.
PAUSE_S = 0.02


def client(addresses: str) -> ClusterClient:
    servers = parse_bootstrap_servers(addresses)
    return ClusterClient(ClientConfig(servers, api_timeout_ms=PATIENCE_S * 1000, read_committed=True))


class CommittingWriter:
    """Commits transactions of one record for each partition until it is stopped; counts what was acknowledged."""

    def __init__(self, addresses: str) -> None:
        self._addresses = addresses
        self._stop = threading.Event()
        self.committed = 0

    def run(self) -> None:
        with client(self._addresses) as brokers:
            producer = TransactionalProducer(brokers, TransactionConfig(TRANSACTIONAL_ID))
            while not self._stop.is_set():
                try:
                    producer.begin([(TOPIC, partition) for partition in range(PARTITIONS)])
                    for partition in range(PARTITIONS):
                        producer.send(TOPIC, partition, [Record(None, b"%d" % self.committed, 1)])
                    producer.commit()
                except AbortableTransactionError:
                    producer.abort()  # and the same records again
                else:
                    self.committed += 1
                self._stop.wait(PAUSE_S)

    def stop(self) -> None:
        self._stop.set()


class CommittedReader:
    """Reads committed records as they come, until it has reached a number of them in each partition."""

    def __init__(self, addresses: str) -> None:
        self._addresses = addresses
        self.wanted: int | None = None
        self.values: dict[int, list[int]] = {partition: [] for partition in range(PARTITIONS)}
        self._positions = dict.fromkeys(range(PARTITIONS), 0)

    def run(self) -> None:
        keys = [(TOPIC, partition) for partition in range(PARTITIONS)]
        deadline_s = time.monotonic() + PATIENCE_S
        with client(self._addresses) as brokers:
            while not self._is_complete():
                for (_, partition), end in brokers.listed_offsets(dict.fromkeys(keys, LATEST)).items():
                    start = self._positions[partition]
                    plan = (start, end.offset, FetchConfig(), end.leader_epoch)
                    for fetched in read_partition(brokers, TOPIC, partition, *plan) if end.offset > start else ():
                        self.values[partition] += committed(fetched)
                        self._positions[partition] = fetched.next_offset
                        deadline_s = time.monotonic() + PATIENCE_S
                assert time.monotonic() < deadline_s, self._positions
                time.sleep(0.05)

    def _is_complete(self) -> bool:
        return self.wanted is not None and all(len(found) >= self.wanted for found in self.values.values())


def committed(fetched: FetchedRecords) -> Iterator[int]:
    """The records of a fetch without those of aborted transactions."""
    coming = sorted(fetched.aborted, key=lambda each: each[1])
    aborted: set[int] = set()
    for header, batch in iterate_batches(fetched.data):
        while coming and coming[0][1] <= header.last_offset:
            aborted.add(coming.pop(0)[0])
        if header.is_control:
            marker = decode_end_transaction_marker(batch)
            if marker is not None and not marker.committed:
                aborted.discard(header.producer_id)
        elif header.producer_id not in aborted:
            yield from (int(bytes(record.value or b"")) for record in decode_records(batch))


class Progress:
    """What a writer and a reader in threads of their own have done."""

    def __init__(self, writer: CommittingWriter, running: tuple[Future[None], Future[None]]) -> None:
        self._writer = writer
        self._running = running

    def await_commits(self) -> None:
        """Wait until some more transactions are acknowledged, or the writer or the reader fails."""
        wanted = self._writer.committed + COMMITS_BETWEEN
        what = "nothing is committed"
        until(lambda: self._writer.committed >= wanted, what, running=self._running, patience_s=PATIENCE_S)


@contextmanager
def each_read_once(addresses: str) -> Iterator[Progress]:
    """Write to the topic and read it during the block; afterwards each acknowledged record was read once, in order."""
    writer, reader = CommittingWriter(addresses), CommittedReader(addresses)
    with ThreadPoolExecutor(2) as threads:
        running = (threads.submit(writer.run), threads.submit(reader.run))
        try:
            yield Progress(writer, running)
        finally:
            writer.stop()
            until(running[0].done, "the writer does not end", patience_s=PATIENCE_S)
            reader.wanted = writer.committed
        for each in running:
            each.result()
    wanted = {partition: list(range(writer.committed)) for partition in range(PARTITIONS)}
    assert reader.values == wanted, f"{reader.values} was read, and not {wanted}"
