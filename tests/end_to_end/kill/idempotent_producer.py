"""A child process of the kill test: sends numbered records until its input ends, journals the acknowledged ones.

    python idempotent_producer.py BOOTSTRAP TOPIC NAME JOURNAL

Record: key `NAME-k`, value the number of the record among those of its key, from 0 without gaps. A line of the journal:
`key number partition offset`. At the end one line on standard output: how many were sent and how many acknowledged.
Exit code 1 when the producer gave up on a record: idempotence was broken.
"""

from __future__ import annotations

import select
import sys
import time
from pathlib import Path

from confluent_kafka import KafkaError, Message, Producer

KEYS = 8
BURST = 50
#: Between bursts: batches are always under way, and the producer leaves the cores to the broker.
PAUSE_S = 0.005
FLUSH_S = 120


def main(bootstrap: str, topic: str, name: str, journal_path: Path) -> int:
    """Runs until the end of standard input; the exit code."""
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "acks": "all",
            "linger.ms": 5,
            # Below the segments of the broker, which refuses larger ones.
            "batch.size": 100_000,
            "message.timeout.ms": 0,
            "queue.buffering.max.messages": 20_000,
            "reconnect.backoff.ms": 20,
            "reconnect.backoff.max.ms": 200,
            "retry.backoff.ms": 20,
            "log_level": 0,
        }
    )
    failures: list[str] = []
    acknowledged = sent = 0
    with journal_path.open("w") as journal:

        def delivered(error: KafkaError | None, message: Message) -> None:
            nonlocal acknowledged
            if error is not None:
                failures.append(str(error))
                return
            acknowledged += 1
            key, value = message.key(), message.value()
            assert key is not None
            assert value is not None
            journal.write(f"{key.decode()} {value.decode()} {message.partition()} {message.offset()}\n")

        while not failures and not select.select([sys.stdin], [], [], 0)[0]:
            for _ in range(BURST):
                try:
                    producer.produce(topic, key=f"{name}-{sent % KEYS}", value=str(sent // KEYS), on_delivery=delivered)
                except BufferError:
                    break
                sent += 1
            producer.poll(0)
            time.sleep(PAUSE_S)
        left = producer.flush(FLUSH_S)
    print(f"sent {sent} acknowledged {acknowledged}", flush=True)
    if failures or left:
        print(f"{left} records without an answer, failed: {failures[:3]}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1], sys.argv[2], sys.argv[3], Path(sys.argv[4])))
