"""Which queries the SQL service runs at once."""

from __future__ import annotations

import pytest

from headwater.api.sql_gateway import SqlFailure, SqlFailureCode
from headwater.cli.sql_service.admission import Admission


def refused(admission: Admission, query: str, session: str) -> str:
    with pytest.raises(SqlFailure) as raised:
        admission.admit(query, session)
    assert raised.value.code is SqlFailureCode.BUSY
    return raised.value.message


def test_queries_of_one_session_share_a_pool_and_others_have_their_own() -> None:
    admission = Admission(10, 10)
    assert [admission.admit(str(n), session) for n, session in enumerate(["a", "b", "a", "", ""])] == [0, 1, 0, 2, 3]


def test_a_session_leaves_room_for_others() -> None:
    admission = Admission(3, 2)
    admission.admit("1", "a")
    admission.admit("2", "a")
    assert "session" in refused(admission, "3", "a")
    admission.admit("4", "b")
    assert "3 queries" in refused(admission, "5", "b")
    admission.release("1")
    admission.admit("6", "a")


def test_pools_are_used_again_once_their_sessions_have_ended() -> None:
    admission = Admission(10, 10)
    for number in range(3):
        admission.admit(str(number), f"session {number}")
    admission.release("1")
    assert admission.admit("3", "new") == 1
    for number in (0, 2, 3):
        admission.release(str(number))
    assert admission.admit("4", "") == 0
