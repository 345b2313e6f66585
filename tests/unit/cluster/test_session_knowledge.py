"""What a broker may conclude from pauses, lost connections and answers."""

from __future__ import annotations

import pytest

from headwater.logtier.cluster.session_knowledge import SessionKnowledge
from headwater.logtier.metadata.store import SessionState

SESSION_MS = 9_000
PAUSE_MS = SESSION_MS // 3 + 1


def knowledge() -> SessionKnowledge:
    return SessionKnowledge(SESSION_MS, now_ms=0)


def test_a_pause_of_a_part_of_the_session_is_a_doubt_until_the_store_answers() -> None:
    known = knowledge()
    assert not known.runs(PAUSE_MS - 1)
    assert known.runs(2 * PAUSE_MS)
    assert known.is_in_doubt
    assert not known.is_over
    known.answered(known.doubts)
    assert not known.is_in_doubt


def test_an_answer_to_a_question_of_an_earlier_doubt_proves_nothing() -> None:
    """It may have been received before the second pause, and read after it."""
    known = knowledge()
    known.runs(PAUSE_MS)
    asked = known.doubts
    assert known.runs(3 * PAUSE_MS)
    known.answered(asked)
    assert known.is_in_doubt


@pytest.mark.parametrize("state", [SessionState.CONNECTED, SessionState.SUSPENDED])
def test_the_state_of_the_connection_alone_ends_no_doubt(state: SessionState) -> None:
    """After SIGCONT the client is connected, or the connection lost, before the end of the session is known."""
    known = knowledge()
    known.runs(PAUSE_MS)
    known.session_changed(state, PAUSE_MS)
    assert known.is_in_doubt


def test_the_end_of_the_session_is_no_doubt() -> None:
    known = knowledge()
    known.runs(PAUSE_MS)
    known.session_changed(SessionState.LOST, PAUSE_MS)
    assert (known.is_over, known.is_in_doubt) == (True, False)
    assert not known.runs(5 * PAUSE_MS), "it is known already"
    known.session_changed(SessionState.CONNECTED, 5 * PAUSE_MS)
    assert known.is_over, "a connection is no registration"
    known.resumed(5 * PAUSE_MS)
    assert not known.is_over


def test_a_pause_while_the_broker_is_registered_anew_is_a_doubt_once_it_leads() -> None:
    """The next session may have ended during it, and the broker knows of the registration first."""
    known = knowledge()
    known.session_changed(SessionState.LOST, 0)
    known.session_changed(SessionState.CONNECTED, 1)
    assert (known.runs(PAUSE_MS), known.is_in_doubt) == (False, False), "it leads nothing"
    assert (known.resumed(PAUSE_MS + 1), known.is_in_doubt) == (True, True)
    known.session_changed(SessionState.LOST, PAUSE_MS + 2)
    assert not known.resumed(PAUSE_MS + 3), "that pause is past"


def test_a_pause_that_ends_with_the_registration_is_noticed() -> None:
    known = knowledge()
    known.session_changed(SessionState.LOST, 0)
    assert known.resumed(PAUSE_MS)
    assert known.is_in_doubt


def test_a_pause_before_a_further_session_ended_says_nothing_of_the_next() -> None:
    known = knowledge()
    known.session_changed(SessionState.LOST, 0)
    known.runs(PAUSE_MS)
    known.session_changed(SessionState.LOST, PAUSE_MS)
    assert not known.resumed(PAUSE_MS + 1)
    assert not known.is_in_doubt


def test_a_store_that_cannot_be_reached_holds_requests_for_a_session_time_at_most() -> None:
    """An outage of ZooKeeper, whose duration nobody knows, must not stop a broker that was slow for a moment."""
    known = knowledge()
    known.session_changed(SessionState.SUSPENDED, 0)
    known.runs(PAUSE_MS)
    for now_ms in range(PAUSE_MS, PAUSE_MS + SESSION_MS, 500):
        known.runs(now_ms)
        assert known.is_in_doubt
    known.runs(PAUSE_MS + SESSION_MS)
    assert not known.is_in_doubt


def test_the_store_is_silent_after_two_session_times_without_a_connection() -> None:
    known = knowledge()
    assert not known.is_silent(10 * SESSION_MS)
    known.session_changed(SessionState.SUSPENDED, 1_000)
    assert not known.is_silent(2 * SESSION_MS + 999)
    assert known.is_silent(2 * SESSION_MS + 1_000)
    known.session_changed(SessionState.CONNECTED, 30_000)
    assert not known.is_silent(30_000)
