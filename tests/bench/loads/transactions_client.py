"""Messages read from a topic and written to another one exactly once.

`python -m tests.bench.loads.transactions_client move BOOTSTRAP SOURCE TARGET MESSAGES PERIOD_S` moves so many messages,
each to the partition of the same number. A transaction takes what is read in a period, and the offsets of the group.
Prints one line of JSON: the seconds from the assignment of the partitions to the last commit, how many transactions
there were, and the median time of a commit in ms. What a transaction wrote is acknowledged before its commit begins,
which is the sending of the offsets, and the end of the transaction.

`... count BOOTSTRAP TOPIC` prints how many messages a reader of committed messages finds.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from typing import Any

from confluent_kafka import Consumer, KafkaError, Producer

from tests.bench.loads.load import LINGER_MS, Load
from tests.bench.loads.load_client import WAIT_S, assignable_consumer

#: Messages that are read at once: little beside what a period takes.
READ_AT_ONCE = 200
#: Without a bound a period would be spent with reading, and most of a transaction with waiting for what was sent in it.
UNACKNOWLEDGED = 5_000


def move(bootstrap: str, source: str, target: str, messages: int, period_s: float) -> dict[str, float]:
    """Moves the messages."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": f"{source}-mover",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            "fetch.queue.backoff.ms": 2,  # as `load_client` has it
        }
    )
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "transactional.id": f"{source}-mover",
            "batch.size": Load().batch_bytes,
            "linger.ms": LINGER_MS,
            "queue.buffering.max.messages": UNACKNOWLEDGED,
            "metadata.recovery.strategy": "none",  # librdkafka's issue 5511
        }
    )
    producer.init_transactions(WAIT_S)
    assigned_s: list[float] = []
    consumer.subscribe([source], on_assign=lambda *_: assigned_s.append(time.perf_counter()))
    commits_ms: list[float] = []
    moved = 0
    while moved < messages:
        producer.begin_transaction()
        end_s = time.perf_counter() + period_s
        while moved < messages and time.perf_counter() < end_s:
            some = consumer.consume(min(READ_AT_ONCE, messages - moved), WAIT_S)
            if not some:
                raise SystemExit(f"no message for {WAIT_S} s after {moved}")
            for message in some:
                _send(producer, target, message)
            moved += len(some)
        if producer.flush(WAIT_S):
            raise SystemExit(f"not all of {moved} messages were acknowledged within {WAIT_S} s")
        commits_ms.append(_commit(consumer, producer) * 1e3)
    seconds = time.perf_counter() - assigned_s[0]
    consumer.close()
    return {"seconds": seconds, "transactions": len(commits_ms), "commit_ms": statistics.median(commits_ms)}


def _send(producer: Producer, target: str, message: Any) -> None:
    if message.error():
        raise SystemExit(str(message.error()))
    while True:
        try:
            producer.produce(target, message.value(), message.key(), partition=message.partition())
            return
        except BufferError:
            producer.poll(0.01)


def _commit(consumer: Consumer, producer: Producer) -> float:
    """Seconds that it takes."""
    begun_s = time.perf_counter()
    positions = [each for each in consumer.position(consumer.assignment()) if each.offset >= 0]
    producer.send_offsets_to_transaction(positions, consumer.consumer_group_metadata(), WAIT_S)
    producer.commit_transaction(WAIT_S)
    return time.perf_counter() - begun_s


def count(bootstrap: str, topic: str) -> dict[str, float]:
    """Reads all partitions to their ends; offsets do not tell, because each marker of a transaction has one, too."""
    consumer, partitions = assignable_consumer(
        bootstrap, topic, {"isolation.level": "read_committed", "enable.partition.eof": True}
    )
    consumer.assign(partitions)
    messages = 0
    ended: set[int] = set()
    while len(ended) < len(partitions):
        message: Any = consumer.poll(WAIT_S)
        if message is None:
            raise SystemExit(f"no message for {WAIT_S} s after {messages}")
        if message.error() is None:
            messages += 1
        elif message.error().code() == KafkaError._PARTITION_EOF:
            ended.add(message.partition())
        else:
            raise SystemExit(str(message.error()))
    consumer.close()
    return {"messages": messages}


if __name__ == "__main__":
    what, bootstrap, topic = sys.argv[1:4]
    if what == "move":
        print(json.dumps(move(bootstrap, topic, sys.argv[4], int(sys.argv[5]), float(sys.argv[6]))))
    else:
        print(json.dumps(count(bootstrap, topic)))
