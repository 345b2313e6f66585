"""The load of librdkafka, in a process of its own: `python -m tests.bench.loads.load_client WHAT BOOTSTRAP TOPIC LOAD`.

WHAT is create, delete, produce, consume or stored; LOAD is a `load.Load` as JSON. Prints one line of JSON.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Mapping
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.bench.loads.load import LINGER_MS, Load

WAIT_S = 60
PAYLOADS = 2000
LETTERS = range(65, 91)


def create(bootstrap: str, topic: str, load: Load) -> dict[str, float]:
    """A fresh topic, its leaders known."""
    create_topic(
        bootstrap, NewTopic(topic, load.partitions, load.replicas, config={"min.insync.replicas": str(load.min_isr)})
    )
    return {}


def create_topic(bootstrap: str, topic: NewTopic) -> None:
    """Returns when the topic's leaders are known."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([topic])[topic.topic].result(WAIT_S)
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        found = admin.list_topics(timeout=WAIT_S).topics.get(topic.topic)
        if (
            found
            and len(found.partitions) == topic.num_partitions
            and all(p.leader >= 0 for p in found.partitions.values())
        ):
            return
        time.sleep(0.05)
    raise SystemExit(f"topic {topic.topic} has no leaders after {WAIT_S} s")


def delete(bootstrap: str, topic: str, _: Load) -> dict[str, float]:
    """The topic is gone."""
    admin = AdminClient({"bootstrap.servers": bootstrap})  # must outlive the future
    admin.delete_topics([topic])[topic].result(WAIT_S)
    return {}


def produce(bootstrap: str, topic: str, load: Load) -> dict[str, float]:
    """Sends the messages, checks that the broker holds them all; seconds until the last was acknowledged."""
    rng = random.Random(0)
    payloads = [bytes(rng.choices(LETTERS, k=load.message_bytes)) for _ in range(PAYLOADS)]
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "acks": load.acks,
            "batch.size": load.batch_bytes,
            "linger.ms": LINGER_MS,
            "compression.type": load.codec,
            "queue.buffering.max.messages": 1_000_000,
            "queue.buffering.max.kbytes": 1_048_576,
        }
    )
    producer.list_topics(topic, timeout=WAIT_S)  # connected before the clock starts
    before = stored_messages(bootstrap, topic)
    start = time.perf_counter()
    send = producer.produce
    for i in range(load.messages):
        while True:
            try:
                send(topic, payloads[i % PAYLOADS])
                break
            except BufferError:
                producer.poll(0.01)
    left = producer.flush(300)
    seconds = time.perf_counter() - start
    # Several producers may fill one topic.
    now = stored_messages(bootstrap, topic)
    if left or now - before < load.messages:
        raise SystemExit(f"sent {load.messages}, unsent {left}, before {before}, now {now}")
    return {"seconds": seconds}


def stored(bootstrap: str, topic: str, _: Load) -> dict[str, float]:
    """Messages in the topic."""
    return {"messages": stored_messages(bootstrap, topic)}


def stored_messages(bootstrap: str, topic: str) -> int:
    """Messages in the topic, by its offsets."""
    consumer, partitions = assignable_consumer(bootstrap, topic)
    marks = [consumer.get_watermark_offsets(partition, WAIT_S) for partition in partitions]
    consumer.close()
    return sum(high - low for low, high in marks)


def consume(bootstrap: str, topic: str, load: Load) -> dict[str, float]:
    """Reads so many messages from the start; seconds from the assignment to the last."""
    consumer, partitions = assignable_consumer(bootstrap, topic)
    start = time.perf_counter()
    consumer.assign(partitions)
    count = 0
    while count < load.messages:
        some = consumer.consume(min(10_000, load.messages - count), WAIT_S)
        if not some:
            raise SystemExit(f"no message for {WAIT_S} s after {count}")
        for message in some:
            if message.error():
                raise SystemExit(str(message.error()))
        count += len(some)
    seconds = time.perf_counter() - start
    consumer.close()
    return {"seconds": seconds}


def assignable_consumer(
    bootstrap: str, topic: str, properties: Mapping[str, Any] | None = None
) -> tuple[Consumer, list[TopicPartition]]:
    """A connected consumer, with further properties if there are any, and the partitions to assign."""
    # With its default, librdkafka stops fetching for a second whenever its local queue is full: a fast broker would be
    # measured waiting for the client.
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": f"{topic}-load",
            "enable.auto.commit": False,
            "fetch.queue.backoff.ms": 2,
            **(properties or {}),
        }
    )
    found = consumer.list_topics(topic, timeout=WAIT_S).topics[topic].partitions
    return consumer, [TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in found]


if __name__ == "__main__":
    actions = {"create": create, "delete": delete, "produce": produce, "consume": consume, "stored": stored}
    print(json.dumps(actions[sys.argv[1]](sys.argv[2], sys.argv[3], Load.from_json(sys.argv[4]))))
