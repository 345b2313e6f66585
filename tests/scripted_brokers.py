"""Brokers of one partition as a client sees them: who leads, what each log holds, what each broker believes.

The leader coordinates all groups, too.
"""

from __future__ import annotations

import struct
import uuid
from collections import deque
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

from kio.index import load_request_schema
from kio.serial import entity_reader

from headwater.logtier.client.cluster import ClientConfig, ClusterClient
from headwater.logtier.client.connection import Request, Response
from headwater.logtier.client.errors import BrokerConnectionError
from headwater.logtier.client.fetch_codec import CompletedFetch
from headwater.logtier.client.messages import CLIENT_VERSIONS, ApiKey
from headwater.logtier.records.batch import Record, build_batch

TOPIC = "flights"
TOPIC_ID = uuid.UUID(int=7)
KEY = (TOPIC, 0)
NOT_LEADER, FENCED, UNKNOWN_EPOCH, OUT_OF_RANGE = 6, 74, 75, 1
UNKNOWN_TOPIC, NOT_COORDINATOR = 3, 16


@dataclass
class Belief:
    """The metadata of one broker; `topic_id` None: it does not know the topic."""

    leader: int
    epoch: int
    topic_id: uuid.UUID | None = TOPIC_ID


@dataclass
class ScriptedBroker:
    """One broker: its belief, its log as (leader epoch, value) by offset, and errors of the next fetches."""

    node_id: int
    belief: Belief
    log: list[tuple[int, bytes]] = field(default_factory=list)
    start: int = 0
    fetch_errors: deque[int] = field(default_factory=deque)
    preferred: int = -1
    rack_seen: list[str] = field(default_factory=list)
    is_dead: bool = False
    api_keys: list[int] = field(default_factory=list)

    def refusal(self, epoch: int, *, or_follower: bool = False) -> int:
        if self.belief.leader != self.node_id and not or_follower:
            return NOT_LEADER
        if epoch in (-1, self.belief.epoch):
            return 0
        return FENCED if epoch < self.belief.epoch else UNKNOWN_EPOCH

    def epoch_end(self, epoch: int) -> tuple[int, int]:
        """As Partition.end_of_epoch, for a log that begins at 0."""
        if epoch == self.belief.epoch:
            return epoch, len(self.log)
        found = max((known for known, _ in self.log if known <= epoch), default=-1)
        return found, sum(known <= found for known, _ in self.log) if found >= 0 else -1

    def records(self, offset: int) -> bytes:
        """A batch for each record from the offset on."""
        batches = []
        for at in range(offset, len(self.log)):
            epoch, value = self.log[at]
            batch = bytearray(build_batch([Record(None, value, 1)], base_offset=at))
            struct.pack_into(">i", batch, 12, epoch)
            batches.append(bytes(batch))
        return b"".join(batches)


class ScriptedConnection:
    """A connection to one broker, without bytes on a wire."""

    def __init__(self, brokers: ScriptedBrokers, broker: ScriptedBroker) -> None:
        self._brokers = brokers
        self._broker = broker
        self._answers: deque[Any] = deque()
        self.address = f"scripted:{broker.node_id}"
        self.closed = False

    @property
    def in_flight(self) -> int:
        return len(self._answers)

    def version(self, api_key: int) -> int:
        return CLIENT_VERSIONS[api_key][1]

    def send(self, request: Request[Any]) -> int:
        if self._broker.is_dead:
            self.close()
            raise BrokerConnectionError(f"{self.address} closed the connection")
        body, _ = entity_reader(cast(Any, load_request_schema(request.api_key, request.api_version)))(request.body, 0)
        self._broker.api_keys.append(request.api_key)
        self._answers.append(self._brokers.answer(self._broker, request.api_key, body))
        return 0

    def receive(self) -> Response[Any]:
        if self._broker.is_dead:
            self.close()
            raise BrokerConnectionError(f"{self.address} closed the connection")
        return Response(0, self._answers.popleft())

    def call(self, request: Request[Any]) -> Any:
        self.send(request)
        return self.receive().value

    def close(self) -> None:
        self.closed = True
        self._answers.clear()


class ScriptedBrokers:
    """A cluster of scripted brokers 1, 2, ..."""

    def __init__(self, count: int, leader: int, epoch: int, values: dict[int, list[bytes]] | None = None) -> None:
        """`values`: the records by leader epoch, the same in every log."""
        log = [(at, value) for at, found in (values or {}).items() for value in found]
        self.brokers = {
            node_id: ScriptedBroker(node_id, Belief(leader, epoch), list(log)) for node_id in range(1, count + 1)
        }

    def elect(self, leader: int, epoch: int, *believers: int) -> None:
        """Another leader, known to these brokers, by default to all."""
        for node_id in believers or tuple(self.brokers):
            self.brokers[node_id].belief = Belief(leader, epoch)

    def client(self, **properties: Any) -> ClusterClient:
        addresses = tuple(("scripted", node_id) for node_id in self.brokers)
        client: Any = ClusterClient(ClientConfig(addresses, **properties))
        client.open_connection = self._connect
        return cast(ClusterClient, client)

    def _connect(self, _host: str, port: int) -> ScriptedConnection:
        if self.brokers[port].is_dead:
            raise BrokerConnectionError(f"no connection to scripted:{port}")
        return ScriptedConnection(self, self.brokers[port])

    def answer(self, broker: ScriptedBroker, api_key: int, body: Any) -> Any:
        match api_key:
            case ApiKey.METADATA:
                return self._metadata(broker)
            case ApiKey.LIST_OFFSETS:
                return self._offsets(broker, body)
            case ApiKey.OFFSET_FOR_LEADER_EPOCH:
                return self._epoch_end(broker, body)
            case ApiKey.FETCH:
                return self._fetch(broker, body)
            case ApiKey.FIND_COORDINATOR:
                found = SimpleNamespace(error_code=0, error_message=None, node_id=broker.belief.leader)
                return SimpleNamespace(coordinators=[found])
            case ApiKey.HEARTBEAT:
                return SimpleNamespace(error_code=0 if broker.belief.leader == broker.node_id else NOT_COORDINATOR)
        raise AssertionError(f"API {api_key} is not scripted")

    def _metadata(self, broker: ScriptedBroker) -> Any:
        nodes = [SimpleNamespace(node_id=i, host="scripted", port=i) for i, b in self.brokers.items() if not b.is_dead]
        belief = broker.belief
        part = SimpleNamespace(partition_index=0, leader_id=belief.leader, leader_epoch=belief.epoch)
        topic = SimpleNamespace(
            name=TOPIC,
            error_code=0 if belief.topic_id else UNKNOWN_TOPIC,
            is_internal=False,
            topic_id=belief.topic_id,
            partitions=[part] if belief.topic_id else [],
        )
        return SimpleNamespace(brokers=nodes, cluster_id="c", topics=[topic])

    @staticmethod
    def _offsets(broker: ScriptedBroker, body: Any) -> Any:
        [topic] = body.topics
        [wanted] = topic.partitions
        part = SimpleNamespace(
            partition_index=0,
            error_code=broker.refusal(wanted.current_leader_epoch),
            offset=broker.start if wanted.timestamp == -2 else len(broker.log),
        )
        return SimpleNamespace(topics=[SimpleNamespace(name=TOPIC, partitions=[part])])

    @staticmethod
    def _epoch_end(broker: ScriptedBroker, body: Any) -> Any:
        [topic] = body.topics
        [wanted] = topic.partitions
        epoch, end = broker.epoch_end(wanted.leader_epoch)
        part = SimpleNamespace(
            partition=0, error_code=broker.refusal(wanted.current_leader_epoch), leader_epoch=epoch, end_offset=end
        )
        return SimpleNamespace(topics=[SimpleNamespace(topic=TOPIC, partitions=[part])])

    @staticmethod
    def _fetch(broker: ScriptedBroker, body: Any) -> Any:
        [topic] = body.topics
        [wanted] = topic.partitions
        broker.rack_seen.append(body.rack_id)
        code = broker.fetch_errors.popleft() if broker.fetch_errors else 0
        code = code or broker.refusal(wanted.current_leader_epoch, or_follower=True)
        if not code and not broker.start <= wanted.fetch_offset <= len(broker.log):
            code = OUT_OF_RANGE
        preferred = broker.preferred if body.rack_id and not code else -1
        records = b"" if code or preferred >= 0 else broker.records(wanted.fetch_offset)
        return [CompletedFetch(TOPIC, 0, code, len(broker.log), -1, 0, memoryview(records), (), preferred)]
