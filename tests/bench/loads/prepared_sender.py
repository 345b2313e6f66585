"""A sender that does nothing but send: `python -m tests.bench.loads.prepared_sender '[TOPIC, SHARE, REQUESTS]'`.

It has one produce request of a prepared batch of 64 KiB for each of its partitions, and sends it again and again, with
acks=all. SHARE lists the host, the port and the number of each partition. Prints one line of JSON: when the first
request was sent and the last was answered, in monotonic seconds.
"""

from __future__ import annotations

import json
import socket
import struct
import sys
import time
from collections.abc import Callable

from headwater.logtier.client.produce_codec import produce_request
from headwater.logtier.protocol.errors import ErrorCode
from headwater.logtier.records.batch import Record, build_batch
from tests.bench.loads.drivers import PYTHON
from tests.bench.processes import Failed

VERSION = 12
RECORDS = 310
VALUE = b"v" * 200
PIPELINED = 5
REQUEST_S = 60

# (host, port, partition) of each partition that a sender fills.
Share = list[tuple[str, int, int]]


def command(topic: str, share: Share, requests: int) -> list[str]:
    """The command line of one sender."""
    return [*PYTHON, "tests.bench.loads.prepared_sender", json.dumps([topic, share, requests])]


def prepared_batch() -> bytes:
    """What each request adds to its partition: so many RECORDS, all alike."""
    return bytes(build_batch([Record(None, VALUE, int(time.time() * 1000))] * RECORDS))


def send(topic: str, share: Share, requests: int) -> tuple[float, float]:
    """Send so many requests for each partition, all of one broker; monotonic seconds of the first and the last."""
    batch = prepared_batch()
    frames = [_frame(topic, partition, batch) for _, _, partition in share]
    with socket.create_connection(share[0][:2], REQUEST_S) as connection:
        stream = connection.makefile("rb")
        begun_s, waiting = time.monotonic(), 0
        for _ in range(requests):
            for frame in frames:
                if waiting == PIPELINED:
                    _answer(stream.read)
                    waiting -= 1
                connection.sendall(frame)
                waiting += 1
        for _ in range(waiting):
            _answer(stream.read)
        return begun_s, time.monotonic()


def _frame(topic: str, partition: int, batch: bytes) -> bytes:
    body = produce_request(VERSION, {topic: [(partition, batch)]}, timeout_ms=REQUEST_S * 1000).body
    client_id = b"bench"
    head = struct.pack(">hhih", 0, VERSION, 1, len(client_id)) + client_id + b"\0"
    return struct.pack(">i", len(head) + len(body)) + head + body


def _answer(read: Callable[[int], bytes]) -> None:
    (size,) = struct.unpack(">i", read(4))
    body = memoryview(read(size))[5:]  # after the correlation id and its tags
    (produced,) = produce_request(VERSION, {}, timeout_ms=0).decode(body)
    if produced.error_code:
        raise Failed(f"produce: {ErrorCode(produced.error_code).name} {produced.error_message or ''}")


if __name__ == "__main__":
    print(json.dumps(send(*json.loads(sys.argv[1]))))
