"""What an incremental fetch (KIP-227) of many partitions costs a broker when none of them has news."""

from __future__ import annotations

import contextlib
import time
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from confluent_kafka.admin import AdminClient, NewTopic

from headwater.logtier.client.blocking import BlockingConnection
from headwater.logtier.client.messages import ApiKey, kio_request
from tests.bench.peers import brokers
from tests.bench.peers.brokers import HEADWATER, KAFKA, Broker
from tests.bench.processes import cpu_seconds
from tests.bench.report import Figures, Table, comparison

TOPIC: Final = "sessions"
#: By name, which both serve.
VERSION: Final = 12
WAIT_S: Final = 300
TIMEOUT_MS: Final = 60_000
#: Fetches of a round, and rounds that do not count: a JVM compiles for as long.
FETCHES: Final = 3_000
WARM_UP_ROUNDS: Final = 4


class Session:
    """A consumer's session with all partitions of the topic."""

    def __init__(self, connection: BlockingConnection, partitions: int) -> None:
        self._connection = connection
        self._id, self._epoch = 0, 0
        positions = tuple(
            {"partition": index, "fetch_offset": 0, "log_start_offset": -1, "partition_max_bytes": 1 << 20}
            for index in range(partitions)
        )
        while self.fetch({"topic": TOPIC, "partitions": positions} if not self._id else None):
            pass  # until all is told

    def fetch(self, topic: dict[str, Any] | None = None) -> bool:
        """Fetch once, without a wait; return whether there was news."""
        values = {
            "replica_id": -1,
            "max_wait": timedelta(0),
            "min_bytes": 1,
            "max_bytes": 1 << 20,
            "isolation_level": 0,
            "session_id": self._id,
            "session_epoch": self._epoch,
            "topics": () if topic is None else (topic,),
            "forgotten_topics_data": (),
            "rack_id": "",
        }
        answer: Any = self._connection.call(kio_request(ApiKey.FETCH, VERSION, values))
        assert not answer.error_code, answer
        assert answer.session_id, "the broker has no room for a session"
        self._id, self._epoch = answer.session_id, self._epoch + 1
        return bool(answer.responses)


def measure(folder: Path, partitions: int, rounds: int) -> tuple[list[Table], Figures]:
    """Starts both brokers, and fetches again and again from each in turn."""
    figures: Figures = {}
    with brokers.both(folder) as pair, contextlib.ExitStack() as stack:
        sessions = {broker.name: Session(_connected(broker, partitions, stack), partitions) for broker in pair}
        for round_number in range(WARM_UP_ROUNDS + rounds):
            for broker in brokers.in_turn(pair, round_number):
                before, begun_s = cpu_seconds(broker.child.pid), time.perf_counter()
                for _ in range(FETCHES):
                    assert not sessions[broker.name].fetch(), "a partition has news"
                took_s, used_s = time.perf_counter() - begun_s, cpu_seconds(broker.child.pid) - before
                print(f"  {broker.name}: {used_s / FETCHES * 1e3:.3f} ms of its CPU time a fetch", flush=True)
                if round_number >= WARM_UP_ROUNDS:
                    for figure, seconds in (("broker's CPU time", used_s), ("time until the answer", took_s)):
                        of_figure = figures.setdefault(f"{figure} of a fetch, ms", {})
                        of_figure.setdefault(broker.name, []).append(seconds / FETCHES * 1e3)
    title = f"Fetches of a session with {partitions:,} partitions without news, {rounds} rounds of {FETCHES:,} in turn"
    return [comparison(title, figures, KAFKA, HEADWATER)], figures


def _connected(broker: Broker, partitions: int, stack: contextlib.ExitStack) -> BlockingConnection:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    topic = NewTopic(TOPIC, partitions, 1)
    admin.create_topics([topic], operation_timeout=WAIT_S, request_timeout=WAIT_S)[TOPIC].result(WAIT_S)
    deadline_s = time.monotonic() + WAIT_S
    while True:
        states = admin.list_topics(TOPIC, timeout=WAIT_S).topics[TOPIC].partitions.values()
        if len(states) == partitions and all(state.leader >= 0 for state in states):
            break
        assert time.monotonic() < deadline_s, "not all partitions have leaders"
        time.sleep(0.2)
    connection = BlockingConnection(
        "127.0.0.1",
        broker.port,
        client_id="fetch-sessions",
        connect_timeout_ms=TIMEOUT_MS,
        request_timeout_ms=TIMEOUT_MS,
        receive_buffer_bytes=-1,
    )
    stack.callback(connection.close)
    return connection
