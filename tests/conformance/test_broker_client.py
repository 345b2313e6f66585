"""A broker's own client against a real broker: a follower's fetches, restarts, pauses, sessions that end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from headwater.logtier.client.connection import Request
from headwater.logtier.client.errors import BrokerConnectionError, ClientError, RequestTimeoutError
from headwater.logtier.client.messages import ApiKey, kio_request
from headwater.logtier.client.security import ClientSecurity
from headwater.logtier.peers import link
from headwater.logtier.peers.leader_requests import (
    LeaderEpochEnd,
    VerifiedTransaction,
    add_partitions_to_txn_request,
    list_offsets_request,
    offset_for_leader_epoch_request,
)
from headwater.logtier.peers.link import LinkContext
from headwater.logtier.peers.peers import Peers, Purpose
from headwater.logtier.peers.replica_fetch import ReplicaFetchPartition, replica_fetch_request
from headwater.logtier.peers.settings import BrokerAddress, PeerSettings
from headwater.logtier.protocol.errors import ErrorCode
from headwater.logtier.runtime.clock import SystemClock
from headwater.logtier.runtime.event_loop import run
from headwater.logtier.runtime.outgoing import SocketOutgoingNetwork
from headwater.logtier.runtime.random_bytes import system_random_bytes

if TYPE_CHECKING:
    from tests.conftest import BrokerProcess, Certificates, StartBroker

pytestmark = pytest.mark.slow

TOPIC = "flights"
PING = kio_request(ApiKey.API_VERSIONS, 0, {})
#: A follower that the cluster does not have.
REPLICA_ID, REPLICA_EPOCH = 7, 1
TIMEOUT_S = 30


def connections(address: str, security: ClientSecurity | None = None, **settings: Any) -> Peers:
    host, _, port = address.rpartition(":")
    context = LinkContext(
        SocketOutgoingNetwork(),
        SystemClock(),
        random.Random(1).random,
        system_random_bytes,
        PeerSettings("test", **settings),
    )
    chosen = security or ClientSecurity()
    return Peers(lambda _: BrokerAddress(host, int(port)), lambda _: chosen, context)


def on_loop(peers: Peers, scenario: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        try:
            await scenario()
        finally:
            await peers.aclose()

    run(main())


async def ping(peers: Peers) -> bool:
    return bool((await peers.call(1, Purpose.CONTROLLER, PING)).api_keys)


async def ping_until_it_answers(peers: Peers) -> list[ClientError]:
    """Repeats a call as fetchers do, without delays of its own; returns the errors before the answer."""
    errors: list[ClientError] = []
    async with asyncio.timeout(TIMEOUT_S):
        while True:
            try:
                assert await ping(peers)
            except ClientError as error:
                errors.append(error)
            else:
                return errors


def produce(address: str, values: list[str]) -> None:
    producer = Producer({"bootstrap.servers": address})
    for value in values:
        producer.produce(TOPIC, value, partition=0)
    assert producer.flush(TIMEOUT_S) == 0


async def topic_id(peers: Peers) -> UUID:
    wanted = {"topics": ({"name": TOPIC, "topic_id": None},), "allow_auto_topic_creation": False}
    request: Request[Any] = kio_request(ApiKey.METADATA, 12, wanted | {"include_topic_authorized_operations": False})
    [topic] = (await peers.call(1, Purpose.OFFSETS, request)).topics
    found: UUID = topic.topic_id
    return found


def test_a_broker_that_is_no_replica_gets_no_records(start_broker: StartBroker, tmp_path: Path) -> None:
    broker = start_broker(tmp_path / "data")
    admin = AdminClient({"bootstrap.servers": broker.address})
    admin.create_topics([NewTopic(TOPIC, 1, 1)])[TOPIC].result(TIMEOUT_S)
    produce(broker.address, ["one", "two"])
    peers = connections(broker.address)

    async def scenario() -> None:
        flights = await topic_id(peers)
        request = replica_fetch_request(
            REPLICA_ID,
            REPLICA_EPOCH,
            {flights: [ReplicaFetchPartition(0, -1, 0, -1, 0, 1 << 20)]},
            wait_ms=10_000,
            bytes_min=1,
            bytes_max=1 << 20,
            session_epoch=0,
        )
        response = await peers.call(1, Purpose.FETCH_IN_SYNC, request)
        [fetched] = response.partitions
        # Its metadata may be newer than the leader's: it asks again.
        assert (fetched.topic_id, fetched.error_code) == (flights, ErrorCode.unknown_leader_epoch)
        assert not fetched.records
        assert (response.error_code, response.session_id != 0) == (0, True)
        assert await ping(peers)

        key = (TOPIC, 0)
        listed = await peers.call(1, Purpose.OFFSETS, list_offsets_request(-1, {key: (-1, -1)}, timeout_ms=1000))
        assert (listed[key].error_code, listed[key].offset) == (0, 2)  # type: ignore[index]
        epoch = listed[key].leader_epoch  # type: ignore[index]
        ends = await peers.call(1, Purpose.OFFSETS, offset_for_leader_epoch_request(-1, {key: (-1, epoch)}))
        assert ends == {key: LeaderEpochEnd(0, epoch, 2)}
        verified = await peers.call(
            1, Purpose.VERIFICATIONS, add_partitions_to_txn_request([VerifiedTransaction("unknown", 1, 0, [key])])
        )
        assert verified.transactions["unknown"][key] != 0  # type: ignore[index]

    on_loop(peers, scenario)


def test_a_broker_that_is_killed_and_comes_back_is_found_again(start_broker: StartBroker, tmp_path: Path) -> None:
    broker = start_broker(tmp_path / "data")
    peers = connections(broker.address)

    async def scenario() -> None:
        assert await ping(peers)
        broker.kill()
        with pytest.raises(BrokerConnectionError):
            await ping(peers)
        waiting = asyncio.ensure_future(ping_until_it_answers(peers))
        await asyncio.to_thread(start_broker, tmp_path / "data", broker.port)
        assert {type(error) for error in await waiting} <= {BrokerConnectionError}

    on_loop(peers, scenario)


def test_a_broker_that_is_stopped_for_a_while_is_given_up_and_found_again(
    start_broker: StartBroker, tmp_path: Path
) -> None:
    broker = start_broker(tmp_path / "data")
    peers = connections(broker.address, request_timeout_ms=1_000, setup_timeout_ms=500)

    async def scenario() -> None:
        await ping_until_it_answers(peers)  # on a busy machine not at once
        os.kill(broker.pid, signal.SIGSTOP)
        try:
            with pytest.raises(RequestTimeoutError):
                await ping(peers)
            # The kernel accepts the connection, nobody answers.
            with pytest.raises((BrokerConnectionError, RequestTimeoutError)):
                await ping(peers)
        finally:
            os.kill(broker.pid, signal.SIGCONT)
        await ping_until_it_answers(peers)

    on_loop(peers, scenario)


def test_sessions_that_end_cost_no_request(
    start_broker: StartBroker, certificates: Certificates, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """connections.max.reauth.ms: one connection outlives several sessions under load, with fetches that wait."""
    # Seconds before the end: on a busy machine the broker may come to the request a moment later.
    monkeypatch.setattr(link, "RENEW_FROM", 0.3)
    monkeypatch.setattr(link, "RENEW_TO", 0.4)
    command = [sys.executable, "-m", "headwater", "user", "add", "peer", "--data", str(tmp_path / "data")]
    subprocess.run(
        [*command, "-m", "SCRAM-SHA-512"], input="peer-secret\n", text=True, check=True, capture_output=True, timeout=60
    )
    properties = {
        "listeners": "PLAINTEXT://127.0.0.1:0,SASL_SSL://127.0.0.1:0",
        "ssl.keystore.location": str(certificates.server),
        "sasl.enabled.mechanisms": "SCRAM-SHA-512",
        "connections.max.reauth.ms": "4000",
    }
    broker: BrokerProcess = start_broker(tmp_path / "data", properties=properties)
    security = ClientSecurity(
        protocol="SASL_SSL",
        mechanism="SCRAM-SHA-512",
        username="peer",
        password="peer-secret",
        ca_location=str(certificates.ca),
    )
    peers = connections(broker.addresses["SASL_SSL"], security)
    logins: list[int] = []

    async def scenario() -> None:
        ends = asyncio.get_running_loop().time() + 9
        while asyncio.get_running_loop().time() < ends:
            assert all(await asyncio.gather(*(ping(peers) for _ in range(8))))
            parked = replica_fetch_request(REPLICA_ID, 1, {}, wait_ms=100, bytes_min=1, bytes_max=1)
            await peers.call(1, Purpose.CONTROLLER, parked)
        logins.append(1)

    on_loop(peers, scenario)
    assert logins
    assert "peer-secret" not in broker.log()


def test_a_broker_that_is_killed_again_and_again_never_gets_a_response_mixed_up(
    start_broker: StartBroker, tmp_path: Path
) -> None:
    broker = start_broker(tmp_path / "data")
    port = broker.port
    peers = connections(broker.address)
    answers = asyncio.Semaphore(0)

    async def caller(number: int) -> None:
        """Asks for a topic of its own name, which nobody else asks for; cancels some of its calls."""
        prng = random.Random(number)
        name = f"no-such-topic-{number}"
        wanted = {
            "topics": ({"name": name, "topic_id": None},),
            "allow_auto_topic_creation": False,
            "include_topic_authorized_operations": False,
        }
        request: Request[Any] = kio_request(ApiKey.METADATA, 12, wanted)
        while True:
            with contextlib.suppress(ClientError, TimeoutError):
                async with asyncio.timeout(None if prng.random() < 0.8 else prng.random() / 100):
                    [topic] = (await peers.call(1, Purpose.OFFSETS, request)).topics
                    assert topic.name == name
                    answers.release()

    async def answered(count: int) -> None:
        for _ in range(count):
            await answers.acquire()

    async def scenario() -> None:
        nonlocal broker
        callers = [asyncio.ensure_future(caller(number)) for number in range(20)]
        for _ in range(3):
            await answered(200)
            broker.kill()
            broker = await asyncio.to_thread(start_broker, tmp_path / "data", port)
        await answered(200)
        for each in callers:
            each.cancel()
        for outcome in await asyncio.gather(*callers, return_exceptions=True):
            assert isinstance(outcome, asyncio.CancelledError), outcome

    on_loop(peers, scenario)
