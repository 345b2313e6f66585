"""What `headwater load` shows: a bar on a terminal while it runs, and a line or JSON for each load at the end."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from headwater.cli.shell.output import note

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from rich.progress import Progress, TaskID

    from headwater.pipelines.loads.request import LoadOutcome

__all__ = ["LoadDisplay", "show"]

_REFRESH_S = 0.5


class LoadDisplay:
    """Draws the loads' progress on stderr, if that is a terminal: done loads, Spark's tasks, time left."""

    def __init__(self, loads: int) -> None:
        self._loads = loads
        self._done = 0
        self._rows = 0
        self._began = time.monotonic()
        self._bars: Progress | None = None
        self._task: TaskID | None = None
        self._spark: SparkSession | None = None
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        """Start drawing."""
        if not sys.stderr.isatty():
            return
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(20),
            TextColumn("{task.fields[told]}"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            redirect_stdout=False,
        )
        self._task = self._bars.add_task("starting Spark", total=None, told="")
        self._bars.start()
        self._thread = threading.Thread(target=self._draw, name="load-progress", daemon=True)
        self._thread.start()

    def started(self, spark: SparkSession) -> None:
        """Spark has started."""
        self._spark = spark

    def ended_one(self, outcome: LoadOutcome) -> None:
        """A load has ended."""
        self._done += 1
        self._rows += 0 if outcome.manifest is None else outcome.manifest.rows

    def end(self) -> None:
        """Stop drawing."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
        if self._bars is not None:
            self._bars.stop()

    def _draw(self) -> None:
        assert self._bars is not None
        assert self._task is not None
        while not self._ended.wait(_REFRESH_S):
            total, done = self._tasks()
            rate = self._rows / max(time.monotonic() - self._began, 0.001)
            told = f"{self._done}/{self._loads} loads, {self._rows:,} rows, {rate:,.0f}/s"
            description = "starting Spark" if self._spark is None else "loading"
            self._bars.update(self._task, description=description, total=total or None, completed=done, told=told)

    def _tasks(self) -> tuple[int, int]:
        """Spark's tasks of the jobs that run, and those done."""
        if self._spark is None:
            return 0, 0
        try:
            tracker = self._spark.sparkContext.statusTracker()
            stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
        except Exception:  # noqa: BLE001 - Spark is ending
            return 0, 0
        found = [stage for stage in stages if stage is not None]
        return sum(stage.numTasks for stage in found), sum(stage.numCompletedTasks for stage in found)


def show(outcomes: Sequence[LoadOutcome], output: str) -> None:
    """Print the outcomes: JSON on stdout; lines on stdout, failures on stderr."""
    from headwater.pipelines.loads.request import LoadStatus

    if output == "json":
        sys.stdout.write(json.dumps([outcome.value() for outcome in outcomes], ensure_ascii=False, indent=1) + "\n")
    for outcome in outcomes:
        if outcome.outcome is LoadStatus.FAILED:
            note(str(outcome))
        elif output != "json":
            sys.stdout.write(f"{outcome}\n")
