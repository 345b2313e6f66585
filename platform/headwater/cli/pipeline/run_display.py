"""Progress of `headwater pipeline run`: one bar per stage on a terminal, one line per micro-batch elsewhere."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from headwater.cli.shell.output import note

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from headwater.pipelines.monitoring.progress import StageProgress, StageTotals
    from headwater.pipelines.monitoring.stage_state import StageState
    from headwater.pipelines.monitoring.watching import RunInfo, RunWatch

#: A bar moves with its stage's micro-batches; drawing more often would cost more than an idle pipeline does.
REFRESHES_PER_SECOND = 2
BAR_WIDTH = 20


class RunDisplay:
    """A listener that draws on stderr. Invariant: nothing is drawn before `began` or after `ended`."""

    def __init__(self) -> None:
        self._bars: Progress | None = None
        self._tasks: dict[str, TaskID] = {}

    def began(self, info: RunInfo, watch: RunWatch) -> None:  # noqa: ARG002 - a listener's
        """Draw a bar for each stage."""
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn
        from rich.table import Column

        from headwater.pipelines.monitoring.stage_state import State

        width = max(len(name) for name in info.stages)
        state_width = max(len(state.value) for state in State)
        # On a narrow terminal the numbers are cut, not the stage's name and state.
        columns = (
            TextColumn("{task.description}", markup=False, table_column=Column(min_width=width, no_wrap=True)),
            TextColumn("{task.fields[state]}", markup=False, table_column=Column(min_width=state_width, no_wrap=True)),
            BarColumn(BAR_WIDTH, table_column=Column(min_width=BAR_WIDTH)),
            TextColumn("{task.fields[told]}", markup=False, table_column=Column(ratio=1, no_wrap=True)),
        )
        self._bars = Progress(
            *columns,
            console=Console(stderr=True),
            expand=True,
            refresh_per_second=REFRESHES_PER_SECOND,
            # What a stage's own code prints would stand among the bars; into a file or a pipe it goes as it is.
            redirect_stdout=sys.stdout.isatty(),
        )
        for name in info.stages:
            self._tasks[name] = self._bars.add_task(name, total=None, state="starting", told="")
        self._bars.start()

    def changed(self, state: StageState, progress: StageProgress | None) -> None:  # noqa: ARG002 - a listener's
        """Update a stage's bar."""
        if self._bars is None:
            return
        records = sum(lag.records for lag in state.lag.values())
        rows = state.totals.rows
        # Done is what was read in this run, of that and what is known to wait.
        total = max(1, rows + records) if state.lag else None
        self._bars.update(
            self._tasks[state.stage],
            completed=rows if rows or records else total,
            total=total,
            state=state.state.value,
            told=told_beside(state),
        )

    def ended(self) -> None:
        """Stop drawing; the bars remain on the screen."""
        if self._bars is not None:
            self._bars.stop()
            self._bars = None


class StateLines:
    """A listener that prints a line on stderr for each state of a stage until its first micro-batch.

    Later states are reported elsewhere: micro-batches and failures have lines of their own.
    """

    def __init__(self) -> None:
        self._last: dict[str, str] = {}

    def began(self, info: RunInfo, watch: RunWatch) -> None:
        """Print nothing: each stage's first state follows."""

    def changed(self, state: StageState, progress: StageProgress | None) -> None:
        """Print a new state of a stage that has completed no micro-batch."""
        name, value = state.stage, state.state.value
        if progress is not None or state.last is not None or state.is_over or self._last.get(name) == value:
            return
        self._last[name] = value
        note(f"{name}: {value}")

    def ended(self) -> None:
        """Print nothing: the summary follows."""


def told_beside(state: StageState) -> str:
    """Return the numbers beside a stage's bar."""
    parts = [f"{state.totals.rows:,} rows"]
    if state.last is not None and state.last.rows:
        parts.append(f"{state.last.rows_per_second:,.0f}/s")
    if state.lag:
        seconds = [lag.seconds for lag in state.lag.values() if lag.seconds]
        age = f" ({max(seconds):,.0f} s)" if seconds else ""
        parts.append(f"lag {sum(lag.records for lag in state.lag.values()):,}{age}")
    if state.totals.watermark:
        parts.append(f"watermark {state.totals.watermark}")
    if state.stall:
        parts.append("watermark does not advance")
    if state.restarts:
        parts.append(f"{state.restarts} restarts")
    return ", ".join(parts)


def is_terminal() -> bool:
    """Whether stderr is a terminal."""
    return sys.stderr.isatty()


def report(progress: StageProgress, totals: StageTotals) -> None:
    """Print one line for a micro-batch."""
    late = f", {progress.late_rows} late" if progress.late_rows else ""
    watermark = f", watermark {progress.watermark}" if progress.watermark else ""
    note(
        f"{progress.stage}: batch {progress.batch_id}, {progress.rows:,} rows in {progress.duration_ms / 1000:.1f} s "
        f"({progress.rows_per_second:,.0f} rows/s), {totals.rows:,} in all{watermark}{late}"
    )


def summary(totals: StageTotals) -> str:
    """Return one line with a stage's totals."""
    parts = [f"{totals.rows:,} rows read", f"{totals.written:,} written", f"{totals.dead_letters:,} dead letters"]
    if totals.undecodable:
        parts.append(f"{totals.undecodable:,} not decodable")
    parts += [f"{rows:,} not {name}" for name, rows in totals.unmet.items()]
    parts.append(f"{totals.late_rows:,} late")
    if totals.late_records:
        parts.append(f"{totals.late_records:,} late records kept")
    return f"{totals.stage}: " + ", ".join(parts)


def no_report(progress: Any, totals: Any) -> None:
    """Print nothing."""
