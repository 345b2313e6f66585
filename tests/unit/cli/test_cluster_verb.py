"""Which brokers of a cluster are processes of this machine."""

from __future__ import annotations

import contextlib
import socket

import pytest

from headwater.api.topic_model import BrokerInfo
from headwater.cli.shell.local_address import is_this_machine
from headwater.cli.verbs.cluster import _pid

PIDS = {9092: 4711}


def own_addresses() -> list[str]:
    """This machine's names and addresses, as `up --host 0.0.0.0` and `--host ADDRESS` advertise them."""
    names = ["localhost"]
    with contextlib.suppress(OSError):  # without a name that can be resolved, the address below remains
        socket.getaddrinfo(socket.gethostname(), 0)
        names.append(socket.gethostname())
    # Without a network there is no address.
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("203.0.113.7", 9))  # sends nothing; the kernel chooses the address of the way out
        names.append(str(probe.getsockname()[0]))
    return names


def test_a_broker_advertised_by_this_machines_name_or_address_has_its_process_id() -> None:
    hosts = own_addresses()
    assert [_pid(BrokerInfo(1, host, 9092, None), PIDS) for host in hosts] == [4711] * len(hosts)


@pytest.mark.parametrize("host", ["203.0.113.7", "2001:db8:7::7", "no-such-host.invalid", "a..b", "x" * 64])
def test_a_broker_on_another_machine_has_none(host: str) -> None:
    assert not is_this_machine(host)
    assert _pid(BrokerInfo(1, host, 9092, None), PIDS) is None


def test_a_broker_that_up_did_not_start_has_none_and_its_host_is_not_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: pytest.fail("a name is looked up"))
    assert _pid(BrokerInfo(1, "broker.example.org", 9093, None), PIDS) is None
