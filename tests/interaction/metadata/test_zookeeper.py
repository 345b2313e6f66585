"""A real ZooKeeper: TLS, logins, access control, the chroot, an ensemble, and what an administrator reads."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from headwater.logtier.broker import Broker, BrokerStartError
from headwater.logtier.config import BrokerConfig
from headwater.logtier.metadata.store import (
    Create,
    MetadataStore,
    NoAuthError,
    SessionState,
    SetData,
    StoreUnavailableError,
)
from headwater.logtier.metadata.zookeeper.settings import ZooKeeperSettings
from headwater.logtier.metadata.zookeeper.store import ZooKeeperStore
from tests.bench.processes import free_port
from tests.conftest import Certificates
from tests.cutting_proxy import CuttingProxy
from tests.metadata_stores import LONG_SESSION_MS, PATIENCE_S, tree, until
from tests.stopped_process import stop as stop_process
from tests.zookeeper import ServerOptions, ZooKeeperEnsemble, ZooKeeperServer, running_zookeeper

pytestmark = pytest.mark.slow

USER, PASSWORD = "headwater", "a secret"
FAILS_AFTER_MS = 3_000
# Length, protocol version, time-out, session id, password and, of newer servers, whether it only reads.
HANDSHAKE_BYTES = 4 + 4 + 4 + 8 + 4 + 16 + 1


@pytest.fixture(scope="session")
def guarded(tmp_path_factory: pytest.TempPathFactory, certificates: Certificates) -> Iterator[ZooKeeperServer]:
    """A server with a TLS port that asks for client certificates, and with logins by SASL."""
    options = ServerOptions(
        certificates=(certificates.server, certificates.ca),
        users={USER: PASSWORD, "other": "another"},
    )
    with running_zookeeper(tmp_path_factory.mktemp("guarded"), options) as server:
        yield server


def settings(connect: str, **values: object) -> ZooKeeperSettings:
    fixed = {"session_timeout_ms": LONG_SESSION_MS, "connection_timeout_ms": PATIENCE_S * 1000}
    return ZooKeeperSettings(connect, **{**fixed, **values})  # type: ignore[arg-type]


def run(settings: ZooKeeperSettings, scenario: Callable[[ZooKeeperStore], Awaitable[None]]) -> None:
    async def main() -> None:
        store = ZooKeeperStore(settings)
        await store.start()
        try:
            await scenario(store)
        finally:
            await store.close()

    asyncio.run(main())


def failure(settings: ZooKeeperSettings) -> str:
    """What a start that fails says; nothing of it may stay behind."""

    async def main() -> str:
        store = ZooKeeperStore(settings)
        with pytest.raises(StoreUnavailableError) as caught:
            await store.start()
        assert store.state is SessionState.LOST
        return str(caught.value)

    message = asyncio.run(main())
    assert "\n" not in message
    return message


async def use(store: MetadataStore) -> None:
    """Requests of some size, many at once."""
    name = f"/{uuid.uuid4().hex}"
    await store.create(name, b"x" * 300_000)
    assert len((await store.get(name)).data) == 300_000
    await store.multi([Create(f"{name}/{number}", b"x" * 100) for number in range(1000)])
    nodes = await store.get_many([f"{name}/{number}" for number in range(1000)])
    assert {node.data for node in nodes if node is not None} == {b"x" * 100}
    assert None not in nodes


# -- TLS ---------------------------------------------------------------------------------------------------------------


def test_a_store_reaches_its_server_by_tls_with_a_client_certificate(
    guarded: ZooKeeperServer, certificates: Certificates
) -> None:
    client = certificates.issue("broker", {"CN": "broker"})
    connect = f"localhost:{guarded.tls_port}"
    run(settings(connect, tls=True, truststore=str(certificates.ca), keystore=str(client)), use)


@pytest.mark.parametrize("fault", ["another authority", "no client certificate", "plain text to a TLS port"])
def test_a_connection_that_tls_refuses_is_told_in_one_line(
    guarded: ZooKeeperServer, certificates: Certificates, tmp_path: Path, fault: str
) -> None:
    connect = f"localhost:{guarded.tls_port}"
    own = str(certificates.issue("broker", {"CN": "broker"}))
    values: dict[str, object] = {"tls": True, "truststore": str(certificates.ca), "keystore": own}
    if fault == "another authority":
        values["truststore"] = str(Certificates(tmp_path).ca)
    elif fault == "no client certificate":
        del values["keystore"]
    else:
        values = {}
    said = failure(settings(connect, connection_timeout_ms=FAILS_AFTER_MS, **values))
    assert said.startswith(f"{connect}: ZooKeeper cannot be reached (")
    assert ("certificate verify failed" in said) == (fault == "another authority")


def test_the_name_in_the_servers_certificate_is_checked_unless_that_is_switched_off(
    guarded: ZooKeeperServer, certificates: Certificates
) -> None:
    own = str(certificates.issue("broker", {"CN": "broker"}))
    tls = {"tls": True, "truststore": str(certificates.ca), "keystore": own}
    # The certificate is for localhost and 127.0.0.1.
    connect = f"127.0.0.2:{guarded.tls_port}"
    with_any_name = settings(connect, checks_hostname=False, connection_timeout_ms=FAILS_AFTER_MS, **tls)
    assert with_any_name.tls_context().check_hostname is False  # type: ignore[union-attr]
    run(settings(f"127.0.0.1:{guarded.tls_port}", **tls), use)


# -- logins and access -------------------------------------------------------------------------------------------------


def test_a_login_by_sasl_and_nodes_that_admit_only_it(guarded: ZooKeeperServer) -> None:
    root = f"/{uuid.uuid4().hex}"
    connect = f"{guarded.address}{root}/kafka"

    async def write(store: ZooKeeperStore) -> None:
        await use(store)
        await store.create("/secret", b"1")
        await store.multi([Create("/secret/too", b""), Create("/mine", b"", ephemeral=True)])

        below = f"{root}/kafka"

        async def read(stranger: ZooKeeperStore) -> None:
            for request, path in (
                (stranger.get(f"{below}/secret"), "/secret"),
                (stranger.get(f"{below}/secret/too"), "/secret/too"),
                (stranger.set(f"{below}/secret", b"2"), "/secret"),
                (stranger.multi([SetData(f"{below}/secret", b"2")]), "/secret"),
                (stranger.create(f"{below}/more", b""), "/more"),
                (stranger.children(below), ""),
                (stranger.get(f"{below}/mine"), "/mine"),
            ):
                with pytest.raises(NoAuthError) as caught:
                    await request
                assert caught.value.path == below + path

        for login in ({}, {"username": "other", "password": "another"}):
            stranger = ZooKeeperStore(settings(guarded.address, **login))
            await stranger.start()
            await read(stranger)
            await stranger.close()

    run(settings(connect, username=USER, password=PASSWORD, set_acl=True), write)

    async def read_again(store: ZooKeeperStore) -> None:
        assert (await store.get("/secret")).data == b"1"

    run(settings(connect, username=USER, password=PASSWORD), read_again)
    # The parent of the chroot is for others, too.
    run(settings(f"{guarded.address}{root}/theirs"), use)


def test_a_session_outlives_a_connection_that_is_lost_during_the_login(
    guarded: ZooKeeperServer, caplog: pytest.LogCaptureFixture
) -> None:
    """KAFKA-13461: a failed login stopped the controller for good, though its session went on."""

    async def main() -> None:
        proxy = CuttingProxy(guarded.port)
        await proxy.start()
        connect = f"127.0.0.1:{proxy.port}/{uuid.uuid4().hex}"
        store = ZooKeeperStore(settings(connect, username=USER, password=PASSWORD, set_acl=True))
        await store.start()
        states: list[SessionState] = []
        store.on_session(states.append)
        session = store.session_id
        await store.create("/a", b"")
        # The answer to the handshake passes, that to the login does not: kazoo takes it for refused, and gives up.
        proxy.answer_bytes_max = HANDSHAKE_BYTES
        proxy.reset()
        await until(lambda: "refused the login" in caplog.text)
        assert store.session_id == session
        proxy.answer_bytes_max = None
        await until(lambda: store.exists("/a"))
        assert store.session_id == session
        assert SessionState.LOST not in states
        assert states[0] is SessionState.SUSPENDED
        assert states[-1] is SessionState.CONNECTED, "whoever stopped goes on"
        await store.close()
        await proxy.stop()

    asyncio.run(main())


def test_a_refused_login_is_told_in_one_line_without_the_password(guarded: ZooKeeperServer, tmp_path: Path) -> None:
    said = failure(settings(guarded.address, username=USER, password="not it"))
    assert said == (f"{guarded.address}: ZooKeeper refuses the login of {USER}; check user name and password")
    with running_zookeeper(tmp_path, ServerOptions(users={USER: PASSWORD}, requires_login=True)) as server:
        assert "refuses the login of a broker without user name" in failure(settings(server.address))
        assert f"refuses the login of {USER}" in failure(settings(server.address, username=USER, password="not it"))
        run(settings(server.address, username=USER, password=PASSWORD), use)


def test_a_server_that_cannot_be_reached_is_told_in_one_line() -> None:
    connect = f"127.0.0.1:{free_port()},localhost:{free_port()}/kafka"
    said = failure(settings(connect, connection_timeout_ms=5_000))
    assert said == (
        f"{connect}: ZooKeeper cannot be reached (Connection refused); check zookeeper.connect, and that ZooKeeper runs"
    )


# -- the chroot --------------------------------------------------------------------------------------------------------


def test_the_chroot_is_created_and_nothing_outside_of_it_is_touched(zookeeper: ZooKeeperServer) -> None:
    name = uuid.uuid4().hex

    async def write(store: ZooKeeperStore) -> None:
        await store.create("/a", b"")
        calls: list[str] = []
        store.watch("/a", calls.append)
        await store.multi([Create("/a/b", b""), SetData("/a", b"1")])
        await until(lambda: bool(calls))
        assert set(calls) == {"/a"}
        assert await store.children("/") == ["a"]

    async def look(store: ZooKeeperStore) -> None:
        found = await tree(store, f"/{name}")
        assert sorted(found) == [f"/{name}{rest}" for rest in ("", "/kafka", "/kafka/a", "/kafka/a/b")]

    for _ in range(2):
        run(settings(f"{zookeeper.address}/{name}/kafka"), write if _ == 0 else use)
        if _ == 0:
            run(settings(zookeeper.address), look)


def test_a_chroot_that_does_not_exist_is_not_created_for_a_broker_with_used_folders(
    zookeeper: ZooKeeperServer, tmp_path: Path
) -> None:
    """Its name is misspelt, or the nodes of its cluster are gone."""
    chroot = f"/{uuid.uuid4().hex}"
    meta = "version=1\ncluster.id=QUJDREVGR0hJSktMTU5PUA\nnode.id=1\ndirectory.id=QUJDREVGR0hJSktMTU5PUQ\n"
    (tmp_path / "meta.properties").write_text(meta)
    config = BrokerConfig.from_properties(
        {
            "node.id": 1,
            "log.dirs": str(tmp_path),
            "listeners": "PLAINTEXT://127.0.0.1:0",
            "zookeeper.connect": f"{zookeeper.address}{chroot}",
        }
    )

    async def refused() -> None:
        with pytest.raises(BrokerStartError, match="/cluster/id: ZooKeeper has no cluster, and log folder"):
            await Broker(config).start()

    async def look(store: ZooKeeperStore) -> None:
        assert not await store.exists(chroot)

    asyncio.run(refused())
    run(settings(zookeeper.address), look)


def test_a_chroot_that_the_login_may_not_create_is_told_in_one_line(guarded: ZooKeeperServer) -> None:
    root = f"/{uuid.uuid4().hex}"
    run(settings(f"{guarded.address}{root}", username=USER, password=PASSWORD, set_acl=True), use)
    said = failure(settings(f"{guarded.address}{root}/below"))
    assert said == (
        f"{guarded.address}{root}/below: ZooKeeper does not admit this login to {root}/below; correct the chroot or "
        "its access"
    )


# -- processes ---------------------------------------------------------------------------------------------------------

FROZEN_CLIENT = """
import asyncio, sys
from headwater.logtier.metadata.zookeeper.settings import ZooKeeperSettings
from headwater.logtier.metadata.zookeeper.store import ZooKeeperStore

async def main():
    store = ZooKeeperStore(ZooKeeperSettings(sys.argv[1], session_timeout_ms=6000, connection_timeout_ms=60000))
    store.on_session(lambda state: print(state.value, flush=True))
    await store.start()
    await store.create("/frozen", b"", ephemeral=True)
    print("created", flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


def test_a_process_that_was_stopped_longer_than_its_session_learns_of_the_end_when_it_goes_on(
    zookeeper: ZooKeeperServer,
) -> None:
    connect = f"{zookeeper.address}/{uuid.uuid4().hex}"
    child = subprocess.Popen([sys.executable, "-c", FROZEN_CLIENT, connect], stdout=subprocess.PIPE, text=True)
    # Whatever goes wrong, it does not stay stopped.
    timer = threading.Timer(PATIENCE_S, child.kill)
    timer.start()
    try:
        assert child.stdout is not None
        assert [child.stdout.readline().strip() for _ in range(2)] == ["connected", "created"]
        stop_process(child.pid)

        async def wait(store: ZooKeeperStore) -> None:
            await until(lambda: gone(store))

        async def gone(store: ZooKeeperStore) -> bool:
            return not await store.exists("/frozen")

        run(settings(connect), wait)
        os.kill(child.pid, signal.SIGCONT)
        states = [child.stdout.readline().strip()]
        while states[-1] != "lost":
            assert states[-1] == "suspended"
            states.append(child.stdout.readline().strip())
    finally:
        timer.cancel()
        child.kill()
        child.wait()
        assert child.stdout is not None
        child.stdout.close()


def test_a_session_outlives_the_leader_of_an_ensemble(tmp_path: Path) -> None:
    ensemble = ZooKeeperEnsemble(tmp_path)
    try:
        ensemble.start()
        leader = ensemble.leader()

        async def scenario(store: ZooKeeperStore) -> None:
            states: list[SessionState] = []
            store.on_session(states.append)
            session = store.session_id
            zxids = [await store.create("/e", b"", ephemeral=True)]
            await store.create("/n", b"0")
            calls: list[str] = []
            store.watch("/n", calls.append)
            await until(lambda: bool(calls))
            leader.kill()
            calls.clear()
            version = 0
            while version < 20:
                try:
                    version = await store.set("/n", b"", version)
                except StoreUnavailableError:
                    await until(lambda: store.state is SessionState.CONNECTED)
                    try:
                        await store.sync()
                        version = (await store.get("/n")).version
                    except StoreUnavailableError:
                        continue
            await until(lambda: bool(calls))
            zxids.append((await store.multi([SetData("/n", b"end"), Create("/later", b"")])).zxid)
            assert zxids[1] > zxids[0]
            # With a leader there is another epoch, in the upper half.
            assert zxids[1] >> 32 > zxids[0] >> 32
            assert (store.session_id, SessionState.LOST in states) == (session, False)
            assert (await store.get("/e")).ephemeral_owner == session

        run(settings(ensemble.connect), scenario)
    finally:
        ensemble.stop()


def test_kazoo_is_quiet_and_the_store_leaves_no_thread(
    zookeeper: ZooKeeperServer, caplog: pytest.LogCaptureFixture
) -> None:
    def names() -> list[str]:
        return [thread.name for thread in threading.enumerate() if re.match("headwater-zookeeper", thread.name)]

    run(settings(f"{zookeeper.address}/{uuid.uuid4().hex}"), use)
    asyncio.run(until(lambda: not names()))
    assert caplog.records == []
