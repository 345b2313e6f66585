"""The load of librdkafka, in a process of its own: `python -m tests.bench.load_client WHAT BOOTSTRAP TOPIC MESSAGES`.

WHAT is create, produce, consume or delete. Prints one line of JSON.
"""

from __future__ import annotations

import json
import random
import sys
import time

from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

PARTITIONS = 6
MESSAGE_BYTES = 200
BATCH_BYTES = 65_536
LINGER_MS = 5
WAIT_S = 60
PAYLOADS = 2000


def create(bootstrap: str, topic: str, _: int) -> dict[str, float]:
    """A fresh topic, its leaders known."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(WAIT_S)
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        found = admin.list_topics(timeout=WAIT_S).topics.get(topic)
        if found and len(found.partitions) == PARTITIONS and all(p.leader >= 0 for p in found.partitions.values()):
            return {}
        time.sleep(0.05)
    raise SystemExit(f"topic {topic} has no leaders after {WAIT_S} s")


def delete(bootstrap: str, topic: str, _: int) -> dict[str, float]:
    """The topic is gone."""
    admin = AdminClient({"bootstrap.servers": bootstrap})  # must outlive the future
    admin.delete_topics([topic])[topic].result(WAIT_S)
    return {}


def produce(bootstrap: str, topic: str, messages: int) -> dict[str, float]:
    """Sends so many messages with acks=1, checks that the broker holds them all; seconds until the last was acked."""
    rng = random.Random(0)
    payloads = [bytes(rng.choices(range(65, 91), k=MESSAGE_BYTES)) for _ in range(PAYLOADS)]
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "acks": 1,
            "batch.size": BATCH_BYTES,
            "linger.ms": LINGER_MS,
            "queue.buffering.max.messages": 1_000_000,
            "queue.buffering.max.kbytes": 1_048_576,
        }
    )
    producer.list_topics(topic, timeout=WAIT_S)  # connected before the clock starts
    start = time.perf_counter()
    send = producer.produce
    for i in range(messages):
        while True:
            try:
                send(topic, payloads[i % PAYLOADS])
                break
            except BufferError:
                producer.poll(0.01)
    left = producer.flush(300)
    seconds = time.perf_counter() - start
    consumer, partitions = _consumer(bootstrap, topic)
    marks = [consumer.get_watermark_offsets(partition, WAIT_S) for partition in partitions]
    consumer.close()
    stored = sum(high - low for low, high in marks)
    if left or stored != messages:
        raise SystemExit(f"sent {messages}, unsent {left}, stored {stored}")
    return {"seconds": seconds}


def consume(bootstrap: str, topic: str, messages: int) -> dict[str, float]:
    """Reads so many messages from the start; seconds from the assignment to the last."""
    consumer, partitions = _consumer(bootstrap, topic)
    start = time.perf_counter()
    consumer.assign(partitions)
    count = 0
    while count < messages:
        some = consumer.consume(min(10_000, messages - count), WAIT_S)
        if not some:
            raise SystemExit(f"no message for {WAIT_S} s after {count}")
        for message in some:
            if message.error():
                raise SystemExit(str(message.error()))
        count += len(some)
    seconds = time.perf_counter() - start
    consumer.close()
    return {"seconds": seconds}


def _consumer(bootstrap: str, topic: str) -> tuple[Consumer, list[TopicPartition]]:
    """A connected consumer and the partitions to assign."""
    # With its default, librdkafka stops fetching for a second whenever its local queue is full: a fast broker would be
    # measured waiting for the client.
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": f"{topic}-load",
            "enable.auto.commit": False,
            "fetch.queue.backoff.ms": 2,
        }
    )
    found = consumer.list_topics(topic, timeout=WAIT_S).topics[topic].partitions
    return consumer, [TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in found]


if __name__ == "__main__":
    actions = {"create": create, "delete": delete, "produce": produce, "consume": consume}
    print(json.dumps(actions[sys.argv[1]](sys.argv[2], sys.argv[3], int(sys.argv[4]))))
