"""Messages at a steady rate, each timed.

`python -m tests.bench.loads.latency_client BOOTSTRAP TOPIC ACKS RATE WARM_UP_S SECONDS`
Each value begins with the moment it was handed to the producer; the consumer, in the same process, reads the clock when
it gets the message. Prints a line when the warm-up is over, and one line of JSON at the end: percentiles in ms from
sending to receiving and from sending to the acknowledgement, of what was sent after the warm-up. A SIGTERM ends the
sending before its time.
"""

from __future__ import annotations

import json
import signal
import struct
import sys
import threading
import time
from typing import Any

from confluent_kafka import Consumer, Message, Producer, TopicPartition

WAIT_S = 60
POLL_S = 1
ACKNOWLEDGE_WAIT_S = 0.1
VALUE_BYTES = 200
STAMP = struct.Struct(">q")
#: The line that is printed when the warm-up is over.
COUNTING = "counting"


def percentiles(values_ns: list[int]) -> dict[str, float]:
    """p50, p99, p999 and the largest, in ms.

    >>> percentiles([1_000_000, 2_000_000, 3_000_000])
    {'p50': 2.0, 'p99': 3.0, 'p999': 3.0, 'max': 3.0}
    """
    ordered = sorted(values_ns)
    last = len(ordered) - 1
    return {
        name: ordered[min(last, int(share * len(ordered)))] / 1e6
        for name, share in (("p50", 0.5), ("p99", 0.99), ("p999", 0.999), ("max", 1.0))
    }


def measure(
    bootstrap: str, topic: str, acks: str, rate: float, warm_up_s: float, seconds: float
) -> dict[str, dict[str, float]]:
    """Sends for so long, or until a SIGTERM, receives it all, and sorts the delays."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": f"{topic}-latency",
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 500,
        }
    )
    partitions = consumer.list_topics(topic, timeout=WAIT_S).topics[topic].partitions
    positions = []
    for index in partitions:
        partition = TopicPartition(topic, index)
        partition.offset = consumer.get_watermark_offsets(partition, WAIT_S)[1]
        positions.append(partition)
    consumer.assign(positions)

    begin_ns = time.perf_counter_ns()
    counted_from_ns = begin_ns + int(warm_up_s * 1e9)
    received: list[int] = []
    acknowledged: list[int] = []
    total = int(rate * (warm_up_s + seconds))
    failures: list[str] = []
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())

    def receive() -> None:
        count, last_ns = 0, begin_ns
        while count < total and not failures:
            message = consumer.poll(POLL_S)  # `total` gets smaller when the sending is ended
            now_ns = time.perf_counter_ns()
            if message is None:
                if now_ns - last_ns > WAIT_S * 1e9:
                    failures.append(f"no message for {WAIT_S} s after {count}")
                continue
            if message.error():
                failures.append(str(message.error()))
                return
            last_ns = now_ns
            value: Any = message.value()
            (sent_ns,) = STAMP.unpack_from(value)
            count += 1
            if sent_ns >= counted_from_ns:
                received.append(now_ns - sent_ns)

    producer = Producer({"bootstrap.servers": bootstrap, "acks": acks, "linger.ms": 0})
    producer.list_topics(topic, timeout=WAIT_S)
    receiver = threading.Thread(target=receive)
    receiver.start()
    all_sent = threading.Event()

    def acknowledge() -> None:
        # A thread that waits: `poll` counts in milliseconds, and between two messages there is less than one. Asked for
        # less it returns at once, and a client that spins takes one of few cores away from the broker it measures.
        while not all_sent.is_set():
            producer.poll(ACKNOWLEDGE_WAIT_S)

    acknowledger = threading.Thread(target=acknowledge, daemon=True)
    acknowledger.start()
    filler = bytes(VALUE_BYTES - STAMP.size)

    def on_delivery(sent_ns: int) -> Any:
        def note(error: object, _: Message) -> None:
            if error is not None:
                failures.append(str(error))
            elif sent_ns >= counted_from_ns:
                acknowledged.append(time.perf_counter_ns() - sent_ns)

        return note

    for number in range(total):
        if stopping.is_set():
            total = number
            break
        if number == int(rate * warm_up_s):
            print(COUNTING, flush=True)
        due_ns = begin_ns + int(number / rate * 1e9)
        while (wait_ns := due_ns - time.perf_counter_ns()) > 0:
            time.sleep(wait_ns / 1e9)
        now_ns = time.perf_counter_ns()
        producer.produce(
            topic, STAMP.pack(now_ns) + filler, partition=number % len(positions), on_delivery=on_delivery(now_ns)
        )
        if failures:
            break
    producer.flush(WAIT_S)
    all_sent.set()
    acknowledger.join()
    receiver.join(WAIT_S + 10)
    consumer.close()
    if failures or not received:
        raise SystemExit(f"{topic}: {failures[:1]}, {len(received)} of {total} messages received")
    return {"end to end": percentiles(received), "acknowledged": percentiles(acknowledged)}


if __name__ == "__main__":
    bootstrap, topic, acks = sys.argv[1:4]
    print(json.dumps(measure(bootstrap, topic, acks, *map(float, sys.argv[4:7]))))
