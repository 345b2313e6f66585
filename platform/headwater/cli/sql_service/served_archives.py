"""The archives that the service's statements know: asked for again while it runs, as topic configs enable them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final, Protocol

from headwater.pipelines.archive.configured import KnownArchives
from headwater.pipelines.spark.spark_errors import first_line
from headwater.pipelines.sql.relations import Known
from headwater.pipelines.unified.session_archives import SessionArchives

__all__ = ["ArchivesAsked", "ServedArchives", "ServedState"]

ASKED_EVERY_S: Final = 10.0


class ArchivesAsked(Protocol):
    """Asks which archives there are, as `ArchiveListing` does."""

    def now(self, present: Collection[str] = ()) -> KnownArchives:
        """`present` are those that there are already: of two with one table, theirs stays."""


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
        self,
        listing: ArchivesAsked | None,
        first: SessionArchives,
        known: Known,
        report: Callable[[str], None],
        forget: Callable[[str, str], None] = lambda _name, _path: None,
    ) -> None:
        """`first` are the archives that are listed already, `known` is what is known besides.

        `forget` is called with the name and path of each table of `lake` that is no longer an archive's.
        """
        self._forget = forget
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
            found = SessionArchives.listed(self._listing.now([each.topic for each in self._state.archives.specs]))
        except Exception as error:  # noqa: BLE001 - whatever it is, the next question may be answered
            why = first_line(error)
            if why != self._reported:
                self._reported = why
                self._report(f"archives cannot be listed: {why}; queries know those of the last listing")
            return
        self._reported = ""
        before = self._state.archives
        if (found.specs, found.refused) == (before.specs, before.refused):
            return
        for line in found.refusals(before):
            self._report(line)
        known = self._state.known.archives
        self._state = ServedState(self._state.version + 1, found, found.known(self._known))
        for name, path in known.items():
            if self._state.known.archives.get(name) != path:
                self._drop(name, path)

    def _drop(self, name: str, path: str) -> None:
        try:
            self._forget(name, path)
        except Exception as error:  # noqa: BLE001 - the others are forgotten as well
            self._report(f"lake.{name} is still the table {path}: {first_line(error)}")
