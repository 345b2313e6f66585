"""Limits of connections that are altered while names of hosts are looked up."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Mapping

import pytest

from headwater.logtier.config import BrokerConfig
from headwater.logtier.network import listeners as listeners_module
from headwater.logtier.network.connection_limits import ConnectionLimits
from headwater.logtier.network.listeners import Listeners
from headwater.logtier.runtime.clock import SystemClock
from headwater.logtier.runtime.network import SocketNetwork
from headwater.logtier.security.scram import ScramUsers

WAIT_S = 30
NAME = "max.connections.per.ip.overrides"


class Names:
    """A resolver that answers when it is told to."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.is_asked = threading.Event()
        self._may_answer: dict[str, threading.Event] = {}

    def __call__(self, overrides: str) -> Mapping[str, int]:
        self.asked.append(overrides)
        if overrides:
            self.is_asked.set()
            assert self.answer_to(overrides).wait(WAIT_S)
        return {f"address of {overrides}": 0}

    def answer_to(self, overrides: str) -> threading.Event:
        return self._may_answer.setdefault(overrides, threading.Event())


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Names:
    found = Names()
    monkeypatch.setattr(listeners_module, "_limits_by_address", found)
    return found


def configs(**properties: str) -> BrokerConfig:
    given = {name.replace("_", "."): value for name, value in properties.items()}
    return BrokerConfig.from_properties({"listeners": "PLAINTEXT://127.0.0.1:0", **given})


def run(scenario: Callable[[Listeners], Awaitable[None]]) -> None:
    async def main() -> None:
        listeners = Listeners(configs(), SocketNetwork(), SystemClock(), lambda *_: None, ScramUsers(dict, bytes))
        listeners.open()
        try:
            await scenario(listeners)
        finally:
            listeners.stop()

    asyncio.run(main())


def admits(listeners: Listeners, host: str) -> bool:
    """Whether a connection of the host would be; it is not kept."""
    refusal = listeners._limits.admit("PLAINTEXT", host)
    if refusal is None:
        listeners._limits.release("PLAINTEXT", host)
    return refusal is None


def test_numbers_hold_at_once_and_names_when_they_are_known(names: Names) -> None:
    async def scenario(listeners: Listeners) -> None:
        altering = asyncio.create_task(
            listeners.limit_connections(configs(max_connections="1", max_connections_per_ip_overrides="slow:0"))
        )
        assert await asyncio.to_thread(names.is_asked.wait, WAIT_S)
        assert admits(listeners, "address of slow:0")
        assert listeners._limits.admit("PLAINTEXT", "h") is None
        assert not admits(listeners, "other")
        listeners._limits.release("PLAINTEXT", "h")
        names.answer_to("slow:0").set()
        await altering
        assert not admits(listeners, "address of slow:0")

    run(scenario)


def test_the_last_of_two_alterations_holds_whichever_name_is_known_first(names: Names) -> None:
    async def scenario(listeners: Listeners) -> None:
        first = asyncio.create_task(listeners.limit_connections(configs(max_connections_per_ip_overrides="first:0")))
        second = asyncio.create_task(listeners.limit_connections(configs(max_connections_per_ip_overrides="second:0")))
        names.answer_to("second:0").set()
        await second
        names.answer_to("first:0").set()
        await first
        assert admits(listeners, "address of first:0")
        assert not admits(listeners, "address of second:0")

    run(scenario)


def test_names_are_not_looked_up_again_for_another_config(names: Names) -> None:
    async def scenario(listeners: Listeners) -> None:
        names.answer_to("host:0").set()
        await listeners.limit_connections(configs(max_connections_per_ip_overrides="host:0"))
        await listeners.limit_connections(configs(max_connections_per_ip_overrides="host:0", max_connections="7"))
        assert names.asked == ["", "host:0"]
        assert not admits(listeners, "address of host:0")

    run(scenario)


def test_a_name_of_this_machine_shuts_nobody_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listeners_module, "_addresses", lambda host: ["127.0.1.1", "10.0.0.9"] if host == "me" else [])
    assert listeners_module._limits_by_address("me:0,other:5") == {"10.0.0.9": 0}
    assert listeners_module._limits_by_address("me:2") == {"127.0.1.1": 2, "10.0.0.9": 2}


@pytest.mark.parametrize(("inside", "is_admitted"), [("BROKERS", True), ("CLIENTS", False), (None, True)])
def test_the_listener_for_brokers_is_exempt_from_the_limit_of_the_broker(inside: str | None, is_admitted: bool) -> None:
    """Clients that open all connections do not cut a broker off from the others, as in Kafka."""
    listeners = "BROKERS://127.0.0.1:0,CLIENTS://127.0.0.1:0"
    protocols = {"listener_security_protocol_map": "BROKERS:PLAINTEXT,CLIENTS:PLAINTEXT", "max_connections": "1"}
    named = {} if inside is None else {"inter_broker_listener_name": inside}
    limits = ConnectionLimits(listeners_module._rules(configs(listeners=listeners, **protocols, **named), {}))
    assert limits.admit("CLIENTS", "h") is None
    assert (limits.admit("BROKERS", "h") is None) is is_admitted


def test_the_only_listener_has_the_limit_of_the_broker() -> None:
    limits = ConnectionLimits(listeners_module._rules(configs(max_connections="1"), {}))
    assert [limits.admit("PLAINTEXT", "h") is None for _ in range(2)] == [True, False]
