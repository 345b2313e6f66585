"""Progress of the demo: bars on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headwater.pipelines.monitoring.progress import StageProgress, StageTotals


class Show:
    """Prints progress. Invariant: at most one bar is live, and it is removed before any line is printed."""

    def __init__(self, *, terminal: bool | None = None) -> None:
        self.terminal = sys.stdout.isatty() if terminal is None else terminal
        self._began = time.monotonic()

    def line(self, text: str) -> None:
        """Print a line, prefixed with the seconds since the start."""
        sys.stdout.write(f"[{time.monotonic() - self._began:5.1f} s] {text}\n")
        sys.stdout.flush()

    def spark_is_up(self) -> None:
        """Explain the wait for the first micro-batch; a terminal shows a bar meanwhile."""
        if not self.terminal:
            self.line("  Spark is up; its first micro-batch, in which all is compiled, takes the longest")

    @contextmanager
    def produced(self, total: int) -> Iterator[Callable[[int], None]]:
        """Show the progress of producing; yields the function that receives the number of records so far."""
        with self._bars() as bars:
            task = None if bars is None else bars.add_task("producing", total=total)

            def on_progress(count: int) -> None:
                if bars is None:
                    self.line(f"  {count:,} of {total:,} produced")
                else:
                    bars.update(task, completed=count)

            yield on_progress

    @contextmanager
    def stages(self, total: int) -> Iterator[Callable[[StageProgress, StageTotals], None]]:
        """Show micro-batches; yields a runner's callback. `total` is the number of records of the first stage."""
        with self._bars() as bars:
            tasks: dict[str, Any] = {}
            if bars is not None:
                tasks[""] = bars.add_task("starting Spark", total=None)

            def on_progress(progress: StageProgress, totals: StageTotals) -> None:
                if bars is None:
                    self.line(
                        f"  {progress.stage}: batch {progress.batch_id}, {progress.rows:,} rows in "
                        f"{progress.duration_ms / 1000:.1f} s, {totals.rows:,} in all"
                    )
                    return
                if "" in tasks:
                    bars.remove_task(tasks.pop(""))
                if progress.stage not in tasks:
                    tasks[progress.stage] = bars.add_task(progress.stage, total=total)
                bars.update(tasks[progress.stage], completed=totals.rows)

            yield on_progress

    @contextmanager
    def _bars(self) -> Iterator[Any]:
        if not self.terminal:
            yield None
            return
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
        with Progress(*columns, TimeElapsedColumn(), transient=True) as progress:
            yield progress
