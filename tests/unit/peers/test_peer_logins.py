"""Logins at other brokers on a virtual clock: sessions that end, passwords that are wrong."""

from __future__ import annotations

import asyncio
import logging

import pytest

from headwater.logtier.client.errors import AuthenticationError
from headwater.logtier.client.security import ClientSecurity
from headwater.logtier.peers.peers import Purpose
from tests.memory_network import ECHO
from tests.peer_connections import Cluster, echo, error_of, lines, virtually
from tests.scripted_sasl import ALICE, ScriptedSasl
from tests.virtual_time import run_virtually


@virtually
async def test_a_session_is_renewed_between_two_requests() -> None:
    """Requests in flight are answered before, later ones after the renewal, all on one connection."""
    cluster = Cluster(ALICE)
    sasl = ScriptedSasl(cluster.broker, lifetime_ms=10_000)
    assert await cluster.call("first") == "first"
    await asyncio.sleep(8)
    sasl.holds = {ECHO, 17}
    in_flight = cluster.send("in flight")
    await asyncio.sleep(1.5)
    later = [cluster.send("later"), cluster.send("last")]
    await asyncio.sleep(0.1)
    assert [request.api_key for request in cluster.broker.requests[-2:]] == [ECHO, 17]
    assert sasl.logins == 1
    sasl.holds = set()
    for request in sasl.held:
        sasl.answer(request)
    assert await asyncio.gather(in_flight, *later) == ["in flight", "later", "last"]
    assert sasl.logins == 2
    assert len(cluster.broker.connections) == 1


@virtually
async def test_an_unused_session_is_not_renewed() -> None:
    cluster = Cluster(ALICE)
    sasl = ScriptedSasl(cluster.broker, lifetime_ms=10_000)
    assert await cluster.call("first") == "first"
    await asyncio.sleep(400)
    assert sasl.logins == 1
    assert await cluster.call("second") == "second"
    assert sasl.logins == 2


@virtually
async def test_a_password_that_is_wrong_at_the_renewal_fails_the_waiting_calls() -> None:
    cluster = Cluster(ALICE)
    sasl = ScriptedSasl(cluster.broker, lifetime_ms=10_000)
    assert await cluster.call("first") == "first"
    sasl.password = "other-secret"
    await asyncio.sleep(9.5)
    assert isinstance(await error_of(cluster.send("second")), AuthenticationError)
    assert cluster.broker.open_connections == []


def test_a_wrong_password_is_one_line_until_it_changes(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        cluster = Cluster(ALICE)
        sasl = ScriptedSasl(cluster.broker)
        sasl.password = "other-secret"
        for _ in range(20):
            for purpose in (Purpose.FETCH_IN_SYNC, Purpose.CONTROLLER):
                failure = await error_of(cluster.peers.send(2, purpose, echo("hello"), 3_600_000))
                assert isinstance(failure, AuthenticationError)
        [(level, line)] = lines(caplog)
        assert level == "ERROR"
        assert line == (
            "broker 2 at broker-2:9092 refuses user 'alice': Authentication failed: Invalid username or password; "
            "correct the password in this broker's sasl.jaas.config, or user_alice in that of the other broker, and "
            "restart it; the broker tries again"
        )
        gaps = cluster.attempt_gaps_ms
        assert max(gaps) > 5_000, "a refused credential is tried less often than a broker that is down"
        changed = ClientSecurity(
            protocol="SASL_PLAINTEXT", mechanism="PLAIN", username="alice", password="third-secret"
        )
        cluster.security = changed
        await error_of(cluster.peers.send(2, Purpose.CONTROLLER, echo("hello"), 3_600_000))
        assert len(lines(caplog)) == 2
        sasl.password = "third-secret"
        assert await cluster.peers.call(2, Purpose.CONTROLLER, echo("hello"), 3_600_000) == "hello"
        assert lines(caplog)[2:] == [("INFO", "broker 2 at broker-2:9092 answers")]
        assert "secret" not in caplog.text

    caplog.set_level(logging.INFO)
    run_virtually(run())
