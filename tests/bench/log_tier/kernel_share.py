"""What the kernel alone costs a broker that a producer fills: receiving bytes from a socket and writing them to a file.

No broker can do with less CPU time than a process that does nothing else. The bytes come as record batches of 64 KiB
would, over the loopback device, from a process of its own.
"""

from __future__ import annotations

import os
import resource
import socket
import sys
from pathlib import Path

from crc32c import crc32c

from tests.bench.loads import drivers
from tests.bench.loads.load import Load
from tests.bench.peers import brokers
from tests.bench.processes import Failed
from tests.bench.report import Table, listing

BATCH_BYTES = 65_536
RECORD_OVERHEAD_BYTES = 8  # of a record without key and headers
STEPS = ("receive", "receive and write", "receive, check and write")


def measure(folder: Path, messages: int, rounds: int) -> tuple[list[Table], dict[str, list[float]]]:
    """CPU seconds of the receiver, its kernel's included, per million messages of 200 bytes."""
    load = Load(messages)
    size = messages * (load.message_bytes + RECORD_OVERHEAD_BYTES)
    figures: dict[str, list[float]] = {}
    for round_number in range(rounds):
        for step in STEPS:
            brokers.warm_memory(load)
            command = [
                *drivers.PYTHON,
                "tests.bench.log_tier.kernel_share",
                step,
                str(size),
                str(folder / f"{round_number}"),
            ]
            spent = float(drivers.run(command).splitlines()[-1])
            figures.setdefault(f"{step}, CPU s/million", []).append(spent / messages * 1e6)
    title = f"The kernel's share: {messages:,} messages of {load.message_bytes} bytes in pieces of 64 KiB"
    return [listing(f"{title}, {rounds} rounds", figures)], figures


def receive(connection: socket.socket, size: int, step: str, path: str) -> float:
    """Takes so many bytes; the CPU seconds it took."""
    piece = memoryview(bytearray(BATCH_BYTES))
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    before, position = _cpu_s(), 0
    try:
        while position < size:
            filled, wanted = 0, min(BATCH_BYTES, size - position)
            while filled < wanted:
                count = connection.recv_into(piece[filled:wanted])
                if not count:
                    raise Failed(f"the sender ended after {position + filled} of {size} bytes")
                filled += count
            if "check" in step:
                crc32c(piece[:filled])
            if "write" in step:
                os.pwrite(file, piece[:filled], position)
            position += filled
        return _cpu_s() - before
    finally:
        os.close(file)
        os.unlink(path)


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _send(port: int, size: int) -> None:
    piece = os.urandom(BATCH_BYTES)
    with socket.create_connection(("127.0.0.1", port)) as connection:
        left = size
        while left:
            left -= connection.send(piece[: min(left, BATCH_BYTES)])


def main() -> None:
    step, size, path = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    with socket.create_server(("127.0.0.1", 0)) as server:
        child = os.fork()
        if not child:
            _send(server.getsockname()[1], size)
            os._exit(0)
        connection, _ = server.accept()
        with connection:
            print(receive(connection, size, step, path))
        os.waitpid(child, 0)


if __name__ == "__main__":
    main()
