"""The broker's lock, between real processes and a real broker."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
import uuid

import pytest

from headwater.logtier.client.cluster import ClientConfig, ClusterClient, parse_bootstrap_servers
from headwater.logtier.client.group_member import GroupMember, describe_members, remove_member
from headwater.pipelines.locks import broker_lock
from headwater.pipelines.locks.broker_lock import BrokerLock, LockHeldError, LockLostError, LockUnavailableError
from headwater.pipelines.locks.owner import Owner

pytestmark = pytest.mark.slow

HOLDER = """
import sys, time
from headwater.logtier.client.cluster import ClientConfig, parse_bootstrap_servers
from headwater.pipelines.locks.broker_lock import BrokerLock
from headwater.pipelines.locks.owner import Owner

lock = BrokerLock(ClientConfig(parse_bootstrap_servers(sys.argv[1])), sys.argv[2], "the table", Owner.here("first"))
lock.acquire()
print("held", flush=True)
for line in sys.stdin:
    try:
        lock.confirm()
        print("confirmed", flush=True)
    except Exception as error:
        print(type(error).__name__, flush=True)
lock.release()
"""


@pytest.fixture
def client(bootstrap_servers: str) -> ClientConfig:
    return ClientConfig(parse_bootstrap_servers(bootstrap_servers))


@pytest.fixture
def name() -> str:
    return f"headwater.test.{uuid.uuid4().hex}"


def lock(client: ClientConfig, name: str, what: str = "second") -> BrokerLock:
    return BrokerLock(client, name, "the table", Owner.here(what))


def start(bootstrap_servers: str, name: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, bootstrap_servers, name],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert said(process) == "held"
    return process


def said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def asked(process: subprocess.Popen[str]) -> str:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()
    return said(process)


def test_one_holds_the_lock_and_is_named(client: ClientConfig, name: str) -> None:
    with lock(client, name, "load of flights") as first, lock(client, name) as second:
        first.acquire()
        first.confirm()
        with pytest.raises(LockHeldError, match=r"the table is held by load of flights \(machine .*, process \d+"):
            second.acquire()
        first.confirm()
        waits: list[LockHeldError] = []
        threading.Timer(2.0, first.release).start()
        second.acquire(60.0, waits.append)
        assert len(waits) == 1
        second.confirm()


def test_of_many_at_once_one_wins(client: ClientConfig, name: str) -> None:
    locks = [lock(client, name, str(number)) for number in range(5)]
    held: list[BrokerLock] = []
    refused: list[BrokerLock] = []

    def acquire(each: BrokerLock) -> None:
        try:
            each.acquire()
        except LockHeldError:
            refused.append(each)
        else:
            held.append(each)

    threads = [threading.Thread(target=acquire, args=(each,)) for each in locks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    try:
        assert (len(held), len(refused)) == (1, 4)
        held[0].confirm()
    finally:
        for each in locks:
            each.release()


def test_a_killed_holder_gives_way_at_once(client: ClientConfig, bootstrap_servers: str, name: str) -> None:
    process = start(bootstrap_servers, name)
    process.kill()
    process.communicate(timeout=60)
    with lock(client, name) as second:
        second.acquire()
        second.confirm()


def test_a_frozen_holder_is_replaced_and_learns_it(client: ClientConfig, bootstrap_servers: str, name: str) -> None:
    process = start(bootstrap_servers, name)
    assert asked(process) == "confirmed"
    process.send_signal(signal.SIGSTOP)
    try:
        with lock(client, name) as second:
            with pytest.raises(LockHeldError):
                second.acquire()
            second.acquire(120.0)
            process.send_signal(signal.SIGCONT)
            assert asked(process) == "LockLostError"
            assert asked(process) == "LockLostError"
            second.confirm()
    finally:
        process.send_signal(signal.SIGCONT)
        process.communicate("", timeout=60)


def test_a_membership_lost_alone_loses_nothing(
    client: ClientConfig, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker_lock, "HEARTBEAT_S", 0.1)
    with lock(client, name) as held, ClusterClient(client) as cluster:
        held.acquire()
        [member] = describe_members(cluster, name)
        remove_member(cluster, name, member.member_id)
        deadline = time.monotonic() + 60
        while not (found := describe_members(cluster, name)) or found[0].member_id == member.member_id:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        held.confirm()
        remove_member(cluster, name, member.member_id)  # gone already


def test_who_takes_the_transactional_id_takes_the_lock(client: ClientConfig, name: str) -> None:
    with lock(client, name) as first, lock(client, name) as second:
        first.acquire()
        second._fence.initialise()
        with pytest.raises(LockLostError, match="another process has taken the table over"):
            first.confirm()


def test_brokers_that_are_away_are_said_to_be(name: str) -> None:
    away = ClientConfig((("127.0.0.1", 9),), bootstrap_timeout_ms=0)
    with lock(away, name) as one, pytest.raises(LockUnavailableError, match="the lock of the table cannot be taken: "):
        one.acquire()


def test_members_lead_in_turn(client: ClientConfig, name: str) -> None:
    with ClusterClient(client) as one, ClusterClient(client) as two:
        first = GroupMember(one, name, "elections", b"1", session_timeout_ms=10_000)
        second = GroupMember(two, name, "elections", b"2", session_timeout_ms=10_000)
        assert first.join()
        joined: list[bool] = []
        thread = threading.Thread(target=lambda: joined.append(second.join()))
        thread.start()
        while thread.is_alive():
            if not first.heartbeat():
                assert first.join()
            thread.join(0.05)
        assert joined == [False]
        first.leave()
        while second.heartbeat():
            time.sleep(0.05)
        assert second.join()
        second.leave()
        assert describe_members(one, name) == []
