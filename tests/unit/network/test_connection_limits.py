"""How many connections, from whom, through what, how fast."""

from headwater.logtier.network.connection_limits import ConnectionLimits, ConnectionRules


def test_all_listeners_share_one_limit() -> None:
    limits = ConnectionLimits(ConnectionRules(connections_max=2))
    assert limits.admit("A", "h1") is None
    assert limits.admit("B", "h2") is None
    assert "max.connections" in (limits.admit("A", "h3") or "")
    limits.release("B", "h2")
    assert limits.admit("A", "h3") is None


def test_a_listener_may_have_a_smaller_limit() -> None:
    limits = ConnectionLimits(ConnectionRules(by_listener_max={"A": 1}))
    assert limits.admit("A", "h") is None
    assert "listener.name.a.max.connections" in (limits.admit("A", "h") or "")
    assert limits.admit("B", "h") is None


def test_a_host_with_a_limit_of_its_own_has_no_other() -> None:
    limits = ConnectionLimits(ConnectionRules(per_host_max=1, by_host_max={"big": 2, "banned": 0}))
    assert limits.admit("A", "big") is None
    assert limits.admit("A", "big") is None
    assert "overrides" in (limits.admit("A", "big") or "")
    assert "overrides" in (limits.admit("A", "banned") or "")
    assert limits.admit("A", "other") is None
    assert "max.connections.per.ip" in (limits.admit("A", "other") or "")


def test_a_refused_connection_is_not_counted() -> None:
    limits = ConnectionLimits(ConnectionRules(per_host_max=1))
    limits.admit("A", "h")
    for _ in range(3):
        assert limits.admit("A", "h") is not None
    limits.release("A", "h")
    assert limits.admit("A", "h") is None


def test_a_burst_of_a_second_passes_and_what_is_more_waits() -> None:
    limits = ConnectionLimits(ConnectionRules(per_second_max=10))
    waits = [limits.pause_ms("A", 0) for _ in range(10)]
    assert waits == [0] * 9 + [100]
    assert limits.pause_ms("A", 100) == 100
    assert limits.pause_ms("A", 1200) == 0


def test_a_listener_may_have_a_rate_of_its_own() -> None:
    limits = ConnectionLimits(ConnectionRules(by_listener_per_second_max={"A": 1}))
    assert limits.pause_ms("B", 0) == 0
    assert limits.pause_ms("A", 0) == 1000


def test_altered_limits_hold_for_what_comes_and_leave_what_is_there() -> None:
    limits = ConnectionLimits(ConnectionRules(connections_max=3))
    assert [limits.admit("A", "h") for _ in range(3)] == [None] * 3
    limits.change(ConnectionRules(connections_max=2))
    limits.release("A", "h")
    assert "2 are open (max.connections)" in (limits.admit("A", "h") or "")
    assert limits.by_listener == {"A": 2}
    limits.change(ConnectionRules(connections_max=3))
    assert limits.admit("A", "h") is None


def test_a_rate_that_is_not_altered_goes_on_and_another_begins_anew() -> None:
    limits = ConnectionLimits(ConnectionRules(per_second_max=2, by_listener_per_second_max={"A": 2}))
    assert limits.pause_ms("A", 0) == 0
    limits.change(ConnectionRules(per_second_max=2, by_listener_per_second_max={"A": 2}, connections_max=5))
    assert limits.pause_ms("A", 0) == 500
    limits.change(ConnectionRules(per_second_max=1))
    assert limits.pause_ms("A", 0) == 1000
    limits.change(ConnectionRules())
    assert limits.pause_ms("A", 0) == 0


def test_clients_do_not_shut_out_the_other_brokers() -> None:
    limits = ConnectionLimits(ConnectionRules(connections_max=2, per_second_max=1, protected_listener="BROKERS"))
    assert [limits.admit("CLIENTS", "h") for _ in range(2)] == [None, None]
    assert "max.connections" in (limits.admit("CLIENTS", "h") or "")
    assert limits.admit("BROKERS", "h") is None
    assert limits.pause_ms("BROKERS", 0) == 0
    assert limits.pause_ms("CLIENTS", 0) == 1000
    assert limits.pause_ms("BROKERS", 0) == 0


def test_a_listener_for_brokers_has_the_limits_that_are_its_own() -> None:
    rules = ConnectionRules(
        connections_max=1,
        per_host_max=2,
        by_listener_max={"BROKERS": 3},
        by_listener_per_second_max={"BROKERS": 1},
        protected_listener="BROKERS",
    )
    limits = ConnectionLimits(rules)
    assert [limits.admit("BROKERS", host) for host in ("a", "a", "b")] == [None] * 3
    assert "listener.name.brokers.max.connections" in (limits.admit("BROKERS", "c") or "")
    limits.release("BROKERS", "b")
    assert "max.connections.per.ip" in (limits.admit("BROKERS", "a") or "")
    assert limits.pause_ms("BROKERS", 0) == 1000
