"""The restart policy, without a process."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headwater.supervisor import GiveUp, Restart, RestartPolicy, decide, describe_exit

POLICY = RestartPolicy(attempts_max=5, backoff_ms=200, backoff_max_ms=1_000, healthy_after_ms=60_000)


def run(policy: RestartPolicy, uptimes_ms: list[int]) -> list[Restart | GiveUp]:
    """What follows each death, until it is given up."""
    decisions: list[Restart | GiveUp] = []
    attempts = 0
    for uptime_ms in uptimes_ms:
        decision = decide(policy, attempts, uptime_ms)
        decisions.append(decision)
        if isinstance(decision, GiveUp):
            break
        attempts = decision.attempt
    return decisions


def test_pauses_double_up_to_their_limit_and_then_it_is_given_up() -> None:
    assert run(POLICY, [0] * 9) == [
        Restart(1, 200),
        Restart(2, 400),
        Restart(3, 800),
        Restart(4, 1_000),
        Restart(5, 1_000),
        GiveUp(5),
    ]


def test_a_process_that_was_healthy_starts_over() -> None:
    assert run(POLICY, [0, 0, 60_000, 0]) == [Restart(1, 200), Restart(2, 400), Restart(1, 200), Restart(2, 400)]


def test_without_attempts_nothing_is_restarted() -> None:
    assert run(RestartPolicy(0, 1, 1, 1_000), [0]) == [GiveUp(0)]


def test_without_a_limit_pauses_grow_to_their_limit_and_restarts_never_end() -> None:
    policy = RestartPolicy(None, 200, 1_000, 60_000)
    decisions = run(policy, [0] * 1_000)
    assert decisions[:4] == [Restart(1, 200), Restart(2, 400), Restart(3, 800), Restart(4, 1_000)]
    assert decisions[-1] == Restart(1_000, 1_000)


@given(attempts=st.integers(0, 1_000), uptime_ms=st.integers(0, 10**9))
def test_a_pause_is_never_above_its_limit(attempts: int, uptime_ms: int) -> None:
    decision = decide(RestartPolicy(2_000, 200, 1_000, 60_000), attempts, uptime_ms)
    assert isinstance(decision, Restart)
    assert 200 <= decision.after_ms <= 1_000


def test_an_unknown_signal_is_told_by_its_number() -> None:
    assert describe_exit(-15) == "was ended by SIGTERM"
    assert describe_exit(-126) == "was ended by signal 126"
