"""Sends OpenLineage events to a URL, or appends them to a file, from its own thread.

A slow or unavailable receiver loses events and never delays a micro-batch.
"""

from __future__ import annotations

import json
import logging
import queue
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from headwater.pipelines.monitoring.openlineage import StageLineage, event, file_place, stage_lineage
from headwater.pipelines.monitoring.stage_state import State

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from headwater.pipelines.monitoring.progress import StageProgress
    from headwater.pipelines.monitoring.stage_state import StageState
    from headwater.pipelines.monitoring.watching import RunInfo, RunWatch

__all__ = ["LineageEmitter", "appending", "posting"]

logger = logging.getLogger(__name__)

# Pending events; beyond that the oldest is dropped. A run of a hundred stages begins with this many.
WAITING_MAX: Final = 500
POST_S_MAX: Final = 5.0
END_S_MAX: Final = 5.0
# Interval of a continuous stage's RUNNING events, with its counts.
RUNNING_INTERVAL_S: Final = 60.0
ENDPOINT: Final = "/api/v1/lineage"


class LineageEmitter:
    """A listener: START when a stage begins to run, RUNNING periodically, COMPLETE, FAIL or ABORT at its end."""

    def __init__(self, send: Callable[[bytes], None], running_interval_s: float = RUNNING_INTERVAL_S) -> None:
        self._send = send
        self._interval_s = running_interval_s
        self._queue: queue.Queue[bytes | None] = queue.Queue(WAITING_MAX)
        self._lineages: dict[str, StageLineage] = {}
        self._runs: dict[str, str] = {}
        self._told_s: dict[str, float] = {}
        self._lost = 0
        self._is_told = False
        self._thread = threading.Thread(target=self._run, name="lineage", daemon=True)

    def began(self, info: RunInfo, watch: RunWatch) -> None:  # noqa: ARG002 - a listener's
        """Determine the stages' data sets, and start the thread."""
        columns = known_columns(info)
        for name in info.stages:
            stage = info.loaded.pipeline.stage(name)
            self._lineages[name] = stage_lineage(
                info.loaded, stage, info.bootstrap_servers, columns, is_streaming=info.continuous
            )
        self._thread.start()

    def changed(self, state: StageState, progress: StageProgress | None) -> None:
        """Queue the event of a stage's change."""
        name = state.stage
        if progress is not None:
            if name in self._runs and time.monotonic() - self._told_s[name] >= self._interval_s:
                self._tell(state, "RUNNING")
            return
        if state.state is State.STARTING and name not in self._runs:
            self._runs[name] = str(uuid.uuid4())
            self._tell(state, "START")
        elif name in self._runs and state.is_over:
            failed = state.state is State.FAILED
            self._tell(state, "FAIL" if failed else "COMPLETE")
            del self._runs[name]

    def ended(self) -> None:
        """Send the pending events, for a few seconds at most, and end the thread."""
        if self._lost:
            logger.warning("%d events of lineage were given up: the receiver was too slow", self._lost)
        if not self._thread.is_alive():
            return
        try:
            self._queue.put(None, timeout=END_S_MAX)
        except queue.Full:
            return
        self._thread.join(END_S_MAX)

    def _tell(self, state: StageState, event_type: str) -> None:
        self._told_s[state.stage] = time.monotonic()
        made = event(
            self._lineages[state.stage],
            event_type,
            self._runs[state.stage],
            time.time_ns() // 1_000_000,
            error=state.error if event_type == "FAIL" else "",
            rows_written=None if event_type == "START" else state.totals.written,
        )
        data = json.dumps(made, ensure_ascii=False).encode()
        while True:
            try:
                self._queue.put_nowait(data)
            except queue.Full:
                self._lost += 1
                _drop_oldest(self._queue)
            else:
                return

    def _run(self) -> None:
        while (data := self._queue.get()) is not None:
            try:
                self._send(data)
                self._is_told = False
            except (OSError, ValueError) as error:
                if not self._is_told:
                    logger.warning("lineage is not delivered: %s", getattr(error, "reason", None) or error)
                self._is_told = True


def _drop_oldest(waiting: queue.Queue[bytes | None]) -> None:
    try:
        waiting.get_nowait()
    except queue.Empty:
        return


def posting(url: str, api_key: str = "") -> Callable[[bytes], None]:
    """Return a function that sends an event by POST; a URL without a path gets Marquez's default.

    Raises ValueError for schemes other than http and https. The function raises OSError if the receiver is unavailable,
    slow, or refuses the event.
    """
    parts = urllib.parse.urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{url!r} is not the URL of a receiver: http://HOST:PORT[/PATH]")
    target = url if parts.path.strip("/") else urllib.parse.urlunsplit(parts._replace(path=ENDPOINT))
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {api_key}"} if api_key else {})

    def send(data: bytes) -> None:
        request = urllib.request.Request(target, data, headers, method="POST")  # noqa: S310 - http(s), checked above
        with urllib.request.urlopen(request, timeout=POST_S_MAX) as answer:  # noqa: S310
            answer.read(1 << 16)

    return send


def appending(path: str) -> Callable[[bytes], None]:
    """Return a function that appends each event as a line to a file. Raises OSError if the file cannot be opened."""
    with open(path, "ab"):
        pass

    def send(data: bytes) -> None:
        with open(path, "ab") as file:
            file.write(data + b"\n")

    return send


def known_columns(info: RunInfo) -> dict[tuple[str, str], list[tuple[str, str]]]:
    """Return the columns of topics and of the Delta tables that stages write, from the analysis."""
    found: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for topic, declared in info.analysis.columns.topics.items():
        columns = info.analysis.columns.values.get(topic)
        if columns is not None and columns.schema is not None:
            found["topic", topic] = _columns(columns.schema)
        elif declared.value == "string":
            found["topic", topic] = [("value", "string")]
    for path, stored in info.analysis.columns.stored.items():
        found["delta", file_place(path)[1]] = _columns(stored)
    return found


def _columns(schema: StructType) -> list[tuple[str, str]]:
    return [(each.name, each.dataType.simpleString()) for each in schema.fields]
