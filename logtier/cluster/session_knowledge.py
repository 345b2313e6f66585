"""What a broker knows of its session with the metadata store. Pure.

ZooKeeper tells of the end of a session only once the client is connected again, so a broker may not know for a while:

| what the broker knows | what follows |
|---|---|
| The connection is lost. | It is controller no more. Leaders serve on: no outage of ZooKeeper stops the cluster. |
| It is lost for two session times. | A leader that hears no other member of its ISR either is fenced. |
| The process was paused for a part of it. | Requests wait until the store answers, for a session time at most. |
| The session is over. | The broker leads and coordinates nothing until it is registered anew, with the newest image. |
"""

from typing import Final

from headwater.logtier.metadata.store import SessionState

PAUSES_PER_SESSION: Final = 3
"""A pause longer than this part of the session may have ended it: a client pings each third of the session, so the last
ping may be a third old when the pause begins, and the server's clock ticks coarsely."""

SILENT_SESSIONS: Final = 2
"""Session times without a connection after which others certainly have had the time to elect another leader."""


class SessionKnowledge:
    """Events in, questions out; times are monotonic milliseconds.

    Invariant: a broker that is in doubt does not know of the end of its session; the end of a session is no doubt.
    """

    def __init__(self, session_ms: int, now_ms: int) -> None:
        self._session_ms = session_ms
        self._runs_ms = now_ms
        self._suspended_ms: int | None = None
        self._doubted_ms: int | None = None
        self._was_paused = False
        #: Number of doubts so far: an answer ends the doubt in which the store was asked.
        self.doubts = 0
        #: Whether the session of the last registration is over.
        self.is_over = False

    @property
    def is_in_doubt(self) -> bool:
        """Whether the session may have ended while the process was paused."""
        return self._doubted_ms is not None

    def runs(self, now_ms: int) -> bool:
        """Note that the process runs; return whether a doubt begins.

        >>> knowledge = SessionKnowledge(6_000, now_ms=0)
        >>> [knowledge.runs(now_ms) for now_ms in (1_900, 3_900, 6_000)]
        [False, False, True]
        """
        paused_ms, self._runs_ms = now_ms - self._runs_ms, now_ms
        is_pause = paused_ms * PAUSES_PER_SESSION > self._session_ms
        if self.is_over:
            # The session in which the broker is being registered may have begun before the pause.
            self._was_paused = self._was_paused or is_pause
            return False
        if is_pause:
            self._begin_doubt(now_ms)
            return True
        if self._doubted_ms is not None and now_ms - self._doubted_ms >= self._session_ms:
            # The store cannot be reached. That alone ends no leadership, with or without a pause before it.
            self._doubted_ms = None
        return False

    def answered(self, doubt: int) -> None:
        """Note that the store has answered, in the same session, a request that was sent in a doubt."""
        if doubt == self.doubts:
            self._doubted_ms = None

    def session_changed(self, state: SessionState, now_ms: int) -> None:
        """Note another state of the session."""
        if state is SessionState.CONNECTED:
            self._suspended_ms = None
            return
        if self._suspended_ms is None:
            self._suspended_ms = now_ms
        if state is SessionState.LOST:
            self.is_over = True
            self._doubted_ms = None
            self._was_paused = False

    def resumed(self, now_ms: int) -> bool:
        """Note that the broker is registered in a new session, and has the newest image, or need not be.

        Return whether a doubt begins: the process was paused meanwhile, and the new session may be over, too.

        >>> knowledge = SessionKnowledge(6_000, now_ms=0)
        >>> knowledge.session_changed(SessionState.LOST, 1_000)
        >>> knowledge.resumed(now_ms=6_000), knowledge.is_over, knowledge.is_in_doubt
        (True, False, True)
        """
        self.runs(now_ms)
        self.is_over = False
        if self._was_paused:
            self._was_paused = False
            self._begin_doubt(now_ms)
            return True
        return False

    def is_silent(self, now_ms: int) -> bool:
        """Whether the store has not been heard of for so long that others may have elected other leaders."""
        return self._suspended_ms is not None and now_ms - self._suspended_ms >= SILENT_SESSIONS * self._session_ms

    def _begin_doubt(self, now_ms: int) -> None:
        self._doubted_ms = now_ms
        self.doubts += 1
