"""Which queries run at once, and whose they are. Pure."""

from __future__ import annotations

from headwater.api.sql_gateway import SqlFailure, SqlFailureCode

__all__ = ["Admission"]


class Admission:
    """Bounds the queries that run, in all and for each session, and divides sessions to Spark's scheduler pools.

    Queries of one session share a pool, so that a session with many queries gets no more of Spark than one with one.
    Pools are numbered and used again: Spark keeps each that it has seen. A query without a session is its own.

    >>> admission = Admission(queries_max=2, session_queries_max=1)
    >>> admission.admit("1", "a"), admission.admit("2", "b")
    (0, 1)
    >>> admission.release("1")
    >>> admission.admit("3", "c")
    0
    """

    def __init__(self, queries_max: int, session_queries_max: int) -> None:
        self._queries_max = queries_max
        self._session_queries_max = session_queries_max
        self._sessions: dict[str, str] = {}  # by query
        self._pools: dict[str, int] = {}  # by session

    def admit(self, query_id: str, session: str) -> int:
        """Admit a query; returns the number of its pool. Raises SqlFailure (BUSY)."""
        assert query_id not in self._sessions, "a query is admitted once"
        # No name of a session begins like this.
        session = session or f"\0{query_id}"
        if len(self._sessions) >= self._queries_max:
            raise SqlFailure(SqlFailureCode.BUSY, f"{self._queries_max} queries run already: try again later")
        if list(self._sessions.values()).count(session) >= self._session_queries_max:
            most = self._session_queries_max
            raise SqlFailure(SqlFailureCode.BUSY, f"{most} queries of the session run already: try again later")
        self._sessions[query_id] = session
        if session not in self._pools:
            used = set(self._pools.values())
            self._pools[session] = next(number for number in range(len(used) + 1) if number not in used)
        return self._pools[session]

    def release(self, query_id: str) -> None:
        """A query has ended."""
        session = self._sessions.pop(query_id)
        if session not in self._sessions.values():
            del self._pools[session]
