"""Rising and falling load, checked and timed: `python -m tests.bench.log_tier.soak_client BOOTSTRAP SECONDS`.

The rate swings between RATE_MIN and RATE_MAX every PERIOD_S. Every message is received, in order per partition and
without a gap. Prints one line of JSON for each period.
"""

from __future__ import annotations

import json
import math
import struct
import sys
import threading
import time
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import NewTopic

from tests.bench.loads.latency_client import percentiles
from tests.bench.loads.load_client import create_topic

RATE_MIN, RATE_MAX = 1_000, 30_000
PERIOD_S = 150.0
SLICE_S = 0.01
PARTITIONS = 6
VALUE_BYTES = 200
STAMP = struct.Struct(">qq")
TOPIC = "soak"
WAIT_S = 60
# Segments come and go within the run.
CONFIGS = {"segment.bytes": str(64 << 20), "retention.bytes": str(192 << 20)}


def rate(elapsed_s: float) -> float:
    """Messages a second at this moment.

    >>> rate(0), rate(PERIOD_S / 2), rate(PERIOD_S)
    (1000.0, 30000.0, 1000.0)
    """
    return RATE_MIN + (RATE_MAX - RATE_MIN) * (1 - math.cos(2 * math.pi * elapsed_s / PERIOD_S)) / 2


class Receiver(threading.Thread):
    """Reads everything, checks the numbers, keeps the delays of the current period."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__()
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "soak",
                "enable.auto.commit": False,
                "fetch.queue.backoff.ms": 2,
            }
        )
        self._consumer.assign([TopicPartition(TOPIC, index, 0) for index in range(PARTITIONS)])
        self._lock = threading.Lock()
        self._delays: list[int] = []
        self.count = 0
        self.failure = ""
        self.done = threading.Event()

    def take(self) -> list[int]:
        """The delays since the last call, in ns."""
        with self._lock:
            delays, self._delays = self._delays, []
        return delays

    def run(self) -> None:
        expected = [0] * PARTITIONS
        while not self.done.is_set():
            first = self._consumer.poll(0.2)
            if first is None:
                continue
            # What is there already, too: waiting for more would be counted as delay.
            messages = [first, *self._consumer.consume(5000, 0)]
            now_ns = time.perf_counter_ns()
            delays = []
            for message in messages:
                if message.error():
                    self.failure = str(message.error())
                    return
                value: Any = message.value()
                sent_ns, number = STAMP.unpack_from(value)
                partition: Any = message.partition()
                if number != expected[partition]:
                    self.failure = f"partition {partition}: {number} came where {expected[partition]} was due"
                    return
                expected[partition] += 1
                delays.append(now_ns - sent_ns)
            with self._lock:
                self._delays += delays
                self.count += len(delays)
        self._consumer.close()


def main(bootstrap: str, seconds: float) -> None:
    """Send, and report after each period."""
    create_topic(bootstrap, NewTopic(TOPIC, PARTITIONS, 1, config=CONFIGS))
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 2})
    receiver = Receiver(bootstrap)
    receiver.start()
    filler = bytes(VALUE_BYTES - STAMP.size)
    numbers = [0] * PARTITIONS
    start = time.perf_counter()
    sent, due, period_from = 0, 0.0, 0.0
    reported = 0
    partition = 0
    while (elapsed := time.perf_counter() - start) < seconds and not receiver.failure:
        due += rate(elapsed) * SLICE_S
        while sent < due:
            stamp = STAMP.pack(time.perf_counter_ns(), numbers[partition])
            try:
                producer.produce(TOPIC, stamp + filler, partition=partition)
            except BufferError:
                producer.poll(0.05)
                continue
            numbers[partition] += 1
            sent += 1
            partition = (partition + 1) % PARTITIONS
        producer.poll(0)
        pause = start + elapsed + SLICE_S - time.perf_counter()
        if pause > 0:
            time.sleep(pause)
        if elapsed - period_from >= PERIOD_S:
            delays = receiver.take()
            row = {"from_s": period_from, "to_s": elapsed, "messages": len(delays), **percentiles(delays)}
            print(json.dumps(row), flush=True)
            reported += len(delays)
            period_from = elapsed
    producer.flush(WAIT_S)
    deadline = time.monotonic() + WAIT_S
    while receiver.count < sent and not receiver.failure and time.monotonic() < deadline:
        time.sleep(0.05)
    receiver.done.set()
    receiver.join()
    if receiver.failure or receiver.count != sent:
        raise SystemExit(f"sent {sent}, received {receiver.count}: {receiver.failure}")


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
