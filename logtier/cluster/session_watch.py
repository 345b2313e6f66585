"""Keeps a broker from leading, coordinating and answering when its session is over, or may be after a pause."""

import asyncio
import logging
from collections.abc import Callable
from typing import Final, Protocol

from headwater.logtier.cluster.session_knowledge import PAUSES_PER_SESSION, SessionKnowledge
from headwater.logtier.metadata.image import MetadataCache, MetadataDelta
from headwater.logtier.metadata.store import MetadataStore, MetadataStoreError, SessionState
from headwater.logtier.runtime.clock import Clock
from headwater.logtier.runtime.spawned_tasks import SpawnedTasks

log = logging.getLogger(__name__)

BEAT_S_MAX: Final = 0.25
"""Longest interval at which the broker notices that it runs, apart from requests."""

BEATS_PER_PAUSE: Final = 4
"""Beats in the shortest pause that is noticed: one beat that is late is no pause."""

RETRY_S: Final = 0.05
"""Wait before the store is asked again: after a pause, its answer is what clients wait for."""


class Leaderships(Protocol):
    """The leaderships of this broker."""

    def fence(self) -> None:
        """Lead nothing until `unfence`."""

    def unfence(self) -> None:
        """Lead what the newest metadata says."""

    def store_heard(self) -> None:
        """Lead again what was cut off."""


class Registration(Protocol):
    """The last registration of this broker."""

    @property
    def broker_epoch(self) -> int:
        """Its epoch, -1 before the first."""

    @property
    def session_id(self) -> int:
        """The session that it belongs to."""


class SessionWatch:
    """The shell of SessionKnowledge, from `start` to `aclose`; on one event loop.

    Invariant: from the turn in which the end of the session is reported until the image has this broker's registration
    of a later session, the broker leads nothing; unless the store turns out to have lost the whole cluster. After a
    pause no request is served before the store has answered, or has not for a session time. After the end of the watch
    the broker leads nothing.
    """

    def __init__(
        self,
        store: MetadataStore,
        metadata: MetadataCache,
        broker_id: int,
        registration: Registration,
        leaderships: Leaderships,
        clock: Clock,
        session_ms: int,
    ) -> None:
        self._store = store
        self._metadata = metadata
        self._broker_id = broker_id
        self._registration = registration
        self._leaderships = leaderships
        self._clock = clock
        self._knowledge = SessionKnowledge(session_ms, clock.monotonic_ms())
        self._beat_s = min(BEAT_S_MAX, session_ms / 1000 / PAUSES_PER_SESSION / BEATS_PER_PAUSE)
        self._tasks = SpawnedTasks("session watch")
        self._beating: asyncio.TimerHandle | None = None
        self._waiting: dict[asyncio.Future[None], None] = {}
        self._cancel: Callable[[], None] = lambda: None
        self._is_closed = False

    def start(self) -> None:
        """Watch from now on; once, after the first registration. The replica manager follows the metadata already."""
        if self._knowledge.runs(self._clock.monotonic_ms()):
            self._doubt()
        self._cancel = self._store.on_session(self._session_changed)
        self._metadata.subscribe(self._metadata_changed)
        if not self._is_registered():
            # The session of the first registration has ended meanwhile; another one may have begun.
            self._session_changed(SessionState.LOST)
        if self._store.state is not SessionState.CONNECTED or self._knowledge.is_over:
            self._session_changed(self._store.state)
        self._beat()

    async def aclose(self) -> None:
        """Watch no more, and lead nothing; requests that wait are answered, and later ones do not wait."""
        self._is_closed = True
        self._cancel()
        if self._beating is not None:
            self._beating.cancel()
        if not self._knowledge.is_over:
            # The listeners are open for a moment, and nobody learns any more that the session is over.
            self._leaderships.fence()
        await self._tasks.cancel()
        self._decide()

    # -- questions

    def is_in_doubt(self) -> bool:
        """Whether a request must wait for `decided`; each request asks, and shows that the process runs."""
        if self._is_closed:
            return False
        if self._knowledge.runs(self._clock.monotonic_ms()):
            self._doubt()
        return self._knowledge.is_in_doubt

    async def decided(self) -> None:
        """Wait until the session is known to go on or to be over, or nobody can tell."""
        if self._knowledge.is_in_doubt and not self._is_closed:
            waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting[waiting] = None
            try:
                await waiting
            finally:
                self._waiting.pop(waiting, None)

    def is_store_silent(self) -> bool:
        """Whether the store has not been heard of for two session times."""
        return self._knowledge.is_silent(self._clock.monotonic_ms())

    # -- events

    def registered(self) -> None:
        """Note that the broker has registered."""
        self._look()

    def cluster_gone(self) -> None:
        """Note that the store has lost all nodes: nobody can be elected until an administrator restores them."""
        if self._knowledge.is_over and not self._is_closed:
            self._lead_again("serves what it has")

    def _metadata_changed(self, _: MetadataDelta) -> None:
        if self._knowledge.is_over:
            self._look()

    def _look(self) -> None:
        """Lead again if this broker is registered in the present session, and the image tells so."""
        if self._knowledge.is_over and not self._is_closed and self._is_registered():
            self._lead_again("is registered anew, and leads what the metadata says")

    def _lead_again(self, reason: str) -> None:
        # First: what the broker leads from here on asks whether it is in doubt.
        if self._knowledge.resumed(self._clock.monotonic_ms()):
            self._doubt()
        log.info("broker %d %s", self._broker_id, reason)
        self._leaderships.unfence()

    def _is_registered(self) -> bool:
        known = self._metadata.image.brokers.get(self._broker_id)
        return (
            self._store.state is not SessionState.LOST
            and self._registration.session_id == self._store.session_id
            and known is not None
            and known.epoch == self._registration.broker_epoch
        )

    def _session_changed(self, state: SessionState) -> None:
        was_over = self._knowledge.is_over
        self._knowledge.session_changed(state, self._clock.monotonic_ms())
        if self._knowledge.is_over and not was_over:
            log.warning("broker %d leads and coordinates nothing until it is registered anew", self._broker_id)
            self._leaderships.fence()
        elif state is SessionState.CONNECTED and not was_over:
            self._leaderships.store_heard()
        if not self._knowledge.is_in_doubt:
            self._decide()

    def _beat(self) -> None:
        self._beating = asyncio.get_running_loop().call_later(self._beat_s, self._beat)
        if not self.is_in_doubt():
            self._decide()

    # -- doubts

    def _doubt(self) -> None:
        log.warning("this process was paused: requests wait until the session with the metadata store is confirmed")
        self._tasks.spawn(self._ask(self._knowledge.doubts))

    async def _ask(self, doubt: int) -> None:
        while self._knowledge.is_in_doubt and self._knowledge.doubts == doubt:
            try:
                await self._store.sync()
            except MetadataStoreError as error:
                log.debug("the session is not confirmed yet: %s", error)
                await asyncio.sleep(RETRY_S)
            else:
                self._knowledge.answered(doubt)
        if not self._knowledge.is_in_doubt:
            self._decide()

    def _decide(self) -> None:
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_result(None)
