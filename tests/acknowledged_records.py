"""A transactional producer and a reader of ours, which run while a test troubles their brokers."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

from headwater.logtier.client.cluster import LATEST, ClientConfig, ClusterClient, parse_bootstrap_servers
from headwater.logtier.client.errors import AbortableTransactionError
from headwater.logtier.client.fetcher import FetchConfig, FetchedRecords, read_partition
from headwater.logtier.client.transactional_producer import TransactionalProducer, TransactionConfig
from headwater.logtier.records.batch import Record, decode_end_transaction_marker, decode_records, iterate_batches

TOPIC = "flights"
TRANSACTIONAL_ID = "stage"
PARTITIONS = 3
PATIENCE_S = 300


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
