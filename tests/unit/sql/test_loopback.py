"""Foreign clients are served on loopback addresses only."""

from __future__ import annotations

import pytest

from headwater.pipelines.sql.connect_server import connect_conf
from headwater.pipelines.sql.loopback import LOCALHOST, ServerRefusedError, loopback_address


@pytest.mark.parametrize("address", ["0.0.0.0", "192.0.2.1", "::", "broker", ""])
def test_an_address_that_others_reach_is_refused_with_the_reason(address: str) -> None:
    with pytest.raises(ServerRefusedError, match=f"loopback addresses only, not {address}: its clients run programs"):
        loopback_address(address, "the Thrift server")


def test_the_server_in_the_jvm_is_on_a_loopback_address() -> None:
    assert loopback_address(connect_conf()["spark.connect.grpc.binding.address"], "Spark Connect") == LOCALHOST


@pytest.mark.parametrize("address", ["127.0.0.1", "127.1.2.3", "::1"])
def test_loopback_addresses_are_taken(address: str) -> None:
    assert loopback_address(address, "Spark Connect") == address
