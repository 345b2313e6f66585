"""The archives that the service's statements know: asked for again while it runs, as topic configs enable them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from headwater.pipelines.archive.configured import KnownArchives
from headwater.pipelines.archive.errors import ArchiveError, ArchiveFailed
from headwater.pipelines.sql.relations import Known
from headwater.pipelines.unified.session_archives import SessionArchives

__all__ = ["ArchivesAsked", "ServedArchives", "ServedState"]

ASKED_EVERY_S: Final = 10.0


class ArchivesAsked(Protocol):
    """Asks which archives there are, as `ArchiveListing` does."""

    def now(self) -> KnownArchives:
        """Raises ArchiveError and ArchiveFailed."""


@dataclass(frozen=True, slots=True)
class ServedState:
    """The archives of one answer; `version` tells it from earlier ones."""

    version: int
    archives: SessionArchives
    known: Known


class ServedArchives:
    """The archives as they were listed last, by a thread of its own from `start` to `stop`.

    Statements take one state, so that all their names are of one answer. An answer that does not come leaves the last.
    """

    def __init__(
        self, listing: ArchivesAsked | None, first: SessionArchives, known: Known, report: Callable[[str], None]
    ) -> None:
        """`first` are the archives that are listed already, `known` is what is known besides."""
        self._listing = listing
        self._known = known
        self._report = report
        self._reported = ""
        self._state = ServedState(0, first, first.known(known))
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="served-archives", daemon=True)

    @property
    def now(self) -> ServedState:
        """The newest state."""
        return self._state

    def start(self) -> None:
        """Ask from now on."""
        if self._listing is not None:
            self._thread.start()

    def stop(self) -> None:
        """The state stays as it is. A question that is under way is not waited for: brokers may not answer."""
        self._ended.set()

    def _run(self) -> None:
        while not self._ended.wait(ASKED_EVERY_S):
            self.ask()

    def ask(self) -> None:
        """Ask once, and report what has changed."""
        assert self._listing is not None, "only started with it"
        try:
            found = SessionArchives.listed(self._listing.now())
        except (ArchiveError, ArchiveFailed) as error:
            if str(error) != self._reported:
                self._reported = str(error)
                self._report(f"archives cannot be listed: {error}; queries know those of the last listing")
            return
        self._reported = ""
        before = self._state.archives
        if (found.specs, found.refused) == (before.specs, before.refused):
            return
        for line in found.refusals(before):
            self._report(line)
        self._state = ServedState(self._state.version + 1, found, found.known(self._known))
