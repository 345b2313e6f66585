"""Frames on the socket between the REST API and the SQL service."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.api.sql_gateway import QueryColumns, QueryEnd, QueryEvent, RowForm, SqlFailure, SqlFailureCode, SqlQuery
from headwater.sql_socket.frames import (
    FRAME_BYTES_MAX,
    QUERY,
    FrameError,
    FrameReader,
    encode_event,
    encode_failure,
    encode_frame,
    encode_query,
    event_of,
    query_of,
)

EVENTS: st.SearchStrategy[QueryEvent] = st.one_of(
    st.binary(max_size=100),
    st.builds(QueryColumns, st.lists(st.tuples(st.text(max_size=5), st.text(max_size=5)), max_size=3).map(tuple)),
    st.builds(
        QueryEnd, st.integers(0, 2**40), st.sampled_from([None, "rows", "bytes"]), st.floats(0, 1e9, allow_nan=False)
    ),
)


@given(st.lists(EVENTS, max_size=5), st.integers(1, 20))
def test_events_arrive_as_they_were_sent_however_the_bytes_are_divided(events: list[QueryEvent], size: int) -> None:
    sent = b"".join(encode_event(event) for event in events)
    frames = FrameReader()
    found = [
        event_of(kind, payload)
        for start in range(0, len(sent), size)
        for kind, payload in frames.feed(sent[start : start + size])
    ]
    assert found == events


@given(
    st.builds(
        SqlQuery,
        st.text(max_size=5),
        st.text(max_size=50),
        st.text(max_size=5),
        st.dictionaries(st.text(max_size=3), st.none() | st.booleans() | st.integers() | st.text(max_size=5)),
        st.integers(0, 10**6),
        st.integers(1, 10**6),
        st.sampled_from(RowForm),
    )
)
def test_a_query_arrives_as_it_was_sent(query: SqlQuery) -> None:
    [(kind, payload)] = FrameReader().feed(encode_query(query))
    assert (kind, query_of(payload)) == (QUERY, query)


@pytest.mark.parametrize("place", [None, (2, 5)])
def test_a_failure_arrives_with_its_place(place: tuple[int, int] | None) -> None:
    sent = SqlFailure(SqlFailureCode.BUSY, "later", place)
    [(kind, payload)] = FrameReader().feed(encode_failure(sent))
    with pytest.raises(SqlFailure) as raised:
        event_of(kind, payload)
    assert raised.value.value() == sent.value()


def test_bytes_of_another_protocol_are_refused() -> None:
    with pytest.raises(FrameError):
        list(FrameReader().feed(b"GET / HTTP/1.1\r\n"))
    with pytest.raises(FrameError):
        encode_frame(QUERY, bytes(FRAME_BYTES_MAX))
    for payload in (b"", b"{}", b"[1]", b'{"columns": [1]}'):
        with pytest.raises(FrameError):
            event_of(b"S", payload)
        with pytest.raises(FrameError):
            query_of(payload)
    with pytest.raises(FrameError):
        event_of(b"?", b"{}")
