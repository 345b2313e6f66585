"""Clients of simulated brokers: their connections, and what they know of leaders and coordinators."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar
from uuid import UUID

from headwater.logtier.client.connection import Request
from headwater.logtier.client.messages import ApiKey, kio_request
from headwater.logtier.protocol.errors import ErrorCode
from headwater.logtier.protocol.topic_partition import TopicPartition
from tests.simulation.client_connection import ClientConnection
from tests.simulation.history import History, InvariantError
from tests.simulation.node import PORT
from tests.simulation.simulated_network import SimulatedNetwork

Answer = TypeVar("Answer")

#: The host of all clients, and the address that brokers see.
CLIENTS = "clients"
CLIENTS_ADDRESS = "10.0.0.1"
REQUEST_TIMEOUT_S = 3.0
CONNECT_TIMEOUT_S = 1.0
RETRY_S = (0.02, 0.3)
#: Pause between two sends of a producer, and between two fetches of a consumer.
THINK_S = (0.0, 0.1)
_METADATA, _CREATE_TOPICS, _DELETE_TOPICS, _FIND_COORDINATOR = 12, 7, 6, 3
_DELETE_TOPICS_KEY = 20
#: Key types of FindCoordinator.
GROUP_KEY, TRANSACTION_KEY = 0, 1
#: Errors after which a request is repeated.
RETRIABLE = {
    ErrorCode.unknown_topic_or_partition,
    ErrorCode.leader_not_available,
    ErrorCode.not_leader_or_follower,
    ErrorCode.fenced_leader_epoch,
    ErrorCode.unknown_leader_epoch,
    ErrorCode.offset_not_available,
    ErrorCode.kafka_storage_error,
    ErrorCode.coordinator_not_available,
    ErrorCode.coordinator_load_in_progress,
    ErrorCode.not_coordinator,
    ErrorCode.not_controller,
    ErrorCode.broker_not_available,
    ErrorCode.request_timed_out,
    ErrorCode.not_enough_replicas,
    ErrorCode.not_enough_replicas_after_append,
}


@dataclass(frozen=True, slots=True)
class Brokers:
    """How clients reach the brokers: their network, and the hosts that every client knows from the start."""

    network: SimulatedNetwork
    hosts: Sequence[str]


class Client:
    """One client: connections that are made again whenever they are lost, and metadata that is asked for again."""

    def __init__(self, name: str, brokers: Brokers, history: History, chance: random.Random) -> None:
        self.name = name
        self.history = history
        self.chance = chance
        self._brokers = brokers
        self._connections: dict[str, ClientConnection] = {}
        #: Host and epoch of the leaders.
        self._leaders: dict[TopicPartition, tuple[int, str]] = {}
        #: Topic id and the newest leader epoch that any broker has told: a broker with older metadata is not believed
        #: (KIP-320).
        self._newest: dict[TopicPartition, tuple[object, int]] = {}
        self._loop = asyncio.get_running_loop()

    async def ask(self, request: Request[Answer], host: str | None = None) -> Answer:
        """Send a request, to any broker without `host`.

        Raises:
            ConnectionError: The outcome is unknown, or the broker is down.
        """
        if host is None:
            host = self.chance.choice(self._brokers.hosts)
        connection = self._connections.get(host)
        if connection is None or connection.is_lost:
            connection = ClientConnection(self.name)
            try:
                async with asyncio.timeout(CONNECT_TIMEOUT_S):
                    await self._brokers.network.connect(host, PORT, connection)
            except TimeoutError:
                raise ConnectionAbortedError("no connection in time") from None
            self._connections[host] = connection
        return await connection.request(request, REQUEST_TIMEOUT_S)

    async def until_answered(
        self,
        make: Callable[[], Request[Answer]],
        code_of: Callable[[Answer], int],
        what: str,
        key: TopicPartition | None = None,
    ) -> Answer:
        """Repeat a request, to the leader of `key` or to any broker, until it is answered without a retriable error."""
        while True:
            try:
                answer = await self.ask(make(), None if key is None else await self.leader(key))
            except ConnectionError as error:
                self.note("lost", what, type(error).__name__)
            else:
                code = code_of(answer)
                self.note(what, code)
                if code not in RETRIABLE:
                    return answer
            if key is not None:
                self._leaders.pop(key, None)
            await asyncio.sleep(self.chance.uniform(*RETRY_S))

    # -- metadata

    async def leader(self, key: TopicPartition) -> str:
        """Return the host of a partition's leader; ConnectionError if it is not known at present."""
        found = self._leaders.get(key)
        if found is None:
            await self.refresh([key.topic])
            found = self._leaders.get(key)
        if found is None:
            raise ConnectionRefusedError(f"{key} has no leader")
        return found[1]

    def leader_epoch(self, key: TopicPartition) -> int:
        """Return the epoch of the known leader, as Metadata has it, for requests to it (KIP-320); -1 without one."""
        found = self._leaders.get(key)
        return -1 if found is None else found[0]

    def forget_leaders(self) -> None:
        """Ask for the leaders again before the next request."""
        self._leaders.clear()

    async def refresh(self, topics: Sequence[str]) -> None:
        """Ask any broker for the leaders of topics."""
        answer: Any = await self.ask(self._metadata_request(topics))
        hosts = {int(broker.node_id): str(broker.host) for broker in answer.brokers}
        for topic in answer.topics:
            for partition in topic.partitions:
                key = TopicPartition(str(topic.name), int(partition.partition_index))
                host, epoch = hosts.get(int(partition.leader_id)), int(partition.leader_epoch)
                known = self._newest.get(key)
                if known is not None and known[0] == topic.topic_id and epoch < known[1]:
                    continue
                self._newest[key] = topic.topic_id, epoch
                if host is not None:
                    self._leaders[key] = epoch, host

    @staticmethod
    def _metadata_request(topics: Sequence[str]) -> Request[Any]:
        values = {
            "topics": tuple({"topic_id": None, "name": name} for name in topics),
            "allow_auto_topic_creation": False,
            "include_topic_authorized_operations": False,
        }
        return kio_request(ApiKey.METADATA, _METADATA, values)

    async def topic_id(self, topic: str, gone: Collection[UUID] = ()) -> UUID:
        """Ask brokers until one knows the topic by an id that is none of `gone`, and return it."""
        while True:
            try:
                answer: Any = await self.ask(self._metadata_request([topic]))
            except ConnectionError as error:
                self.note("lost", "metadata", type(error).__name__)
            else:
                [found] = answer.topics
                if not found.error_code and found.topic_id not in gone:
                    return UUID(str(found.topic_id))
            await asyncio.sleep(self.chance.uniform(*RETRY_S))

    async def coordinator(self, key: str, key_type: int = GROUP_KEY) -> str:
        """Return the host of a coordinator, whose topic is created by that; ConnectionError without one."""
        values = {"key": key, "key_type": key_type}
        answer: Any = await self.ask(kio_request(ApiKey.FIND_COORDINATOR, _FIND_COORDINATOR, values))
        self.note("find", int(answer.error_code))
        if answer.error_code:
            raise ConnectionRefusedError(f"{key} has no coordinator: {answer.error_code}")
        return str(answer.host)

    # -- time

    def note(self, what: str, *details: object) -> None:
        self.history.note(self._loop.time(), what, self.name, *details)

    async def think(self) -> None:
        await asyncio.sleep(self.chance.uniform(*THINK_S))


async def create_topic(
    client: Client, name: str, partitions: int, configs: dict[str, str], replication_factor: int = 1
) -> None:
    """Create a topic; one that exists is taken as it is."""
    topic = {
        "name": name,
        "num_partitions": partitions,
        "replication_factor": replication_factor,
        "assignments": (),
        "configs": tuple({"name": key, "value": value} for key, value in configs.items()),
    }
    values = {"topics": (topic,), "timeout": timedelta(seconds=2), "validate_only": False}
    answer: Any = await client.until_answered(
        lambda: kio_request(ApiKey.CREATE_TOPICS, _CREATE_TOPICS, values),
        # Fewer brokers than replicas, at present.
        lambda answer: _retriable(int(answer.topics[0].error_code), ErrorCode.invalid_replication_factor),
        "create",
    )
    code = int(answer.topics[0].error_code)
    if code not in (ErrorCode.none, ErrorCode.topic_already_exists):
        raise InvariantError(f"topic {name} was not created: {ErrorCode(code).name}")


async def delete_topic(client: Client, topic_id: UUID) -> None:
    """Delete a topic; one that is gone was deleted by an earlier request.

    By its id: a request whose answer was lost may still come, when a topic of the same name has been made.
    """
    topic = {"name": None, "topic_id": topic_id}
    values = {"topics": (topic,), "timeout": timedelta(seconds=2)}
    while True:
        try:
            answer: Any = await client.ask(kio_request(_DELETE_TOPICS_KEY, _DELETE_TOPICS, values))
        except ConnectionError as error:
            client.note("lost", "delete", type(error).__name__)
        else:
            code = int(answer.responses[0].error_code)
            client.note("delete", code)
            if code in (ErrorCode.none, ErrorCode.unknown_topic_id):
                return
            if code not in RETRIABLE:
                raise InvariantError(f"topic {topic_id} was not deleted: {ErrorCode(code).name}")
        await asyncio.sleep(client.chance.uniform(*RETRY_S))


def _retriable(code: int, also: ErrorCode) -> int:
    return int(ErrorCode.request_timed_out) if code == also else code


class Worker(Client):
    """A client that works on some partitions until `is_ending`."""

    def __init__(
        self, name: str, brokers: Brokers, history: History, chance: random.Random, partitions: list[TopicPartition]
    ) -> None:
        super().__init__(name, brokers, history, chance)
        self._partitions = partitions
        self.is_ending = False
