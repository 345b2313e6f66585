"""A stage's steps in sequence, with the user's code loaded."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

from headwater.pipelines.definition import (
    DeduplicateStep,
    Loaded,
    PythonStep,
    SqlStep,
    Stage,
    StatefulStep,
    Step,
    WatermarkStep,
)
from headwater.pipelines.definition.graph import input_views
from headwater.pipelines.transforms import deduplicate, python, sql, stateful

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from headwater.pipelines.definition.yaml_source import Loc

ApplyStep: TypeAlias = "Callable[[Mapping[str, DataFrame]], DataFrame]"


class Chain:
    """A stage's steps. Loading raises python.UserCodeError; `loc` is a step's path in the file."""

    def __init__(self, loaded: Loaded, stage: Stage) -> None:
        self._loaded = loaded
        self._stage = stage
        self._steps: list[ApplyStep] = []

    def __len__(self) -> int:
        return len(self._stage.transforms)

    @property
    def keeps_user_state(self) -> bool:
        """Whether a step has a user's processor, which needs `stateful.STATE_STORE_CONF`."""
        return any(isinstance(step, StatefulStep) for step in self._stage.transforms)

    def loc(self, position: int) -> Loc:
        """Path of a step in the file, or of the stage if it has no steps."""
        if self._stage.sql is not None:
            return self._loaded.stage_loc(self._stage, "sql")
        if self._stage.python is not None:
            return self._loaded.stage_loc(self._stage, "python")
        if not self._stage.steps:
            return self._loaded.stage_loc(self._stage)
        kind = next(name for name in type(self._stage.steps[position]).model_fields if name != "each_batch")
        return self._loaded.stage_loc(self._stage, "steps", position, kind)

    def load(self, position: int) -> None:
        """Load a step's code. Call once for each step, in order. Raises python.UserCodeError."""
        assert position == len(self._steps), "steps are loaded one after the other"
        self._steps.append(self._applied(self._stage.transforms[position]))

    def apply_step(self, position: int, frames: Sequence[DataFrame]) -> DataFrame:
        """Apply one step: to the inputs' frames for the first step, to the previous step's frame for later steps."""
        names = input_views(self._stage, position)
        views = dict.fromkeys(names, frames[0]) if len(frames) == 1 else dict(zip(names, frames, strict=True))
        return self._steps[position](views)

    def apply_to_streams(self, inputs: Sequence[DataFrame]) -> DataFrame:
        """Apply the steps that run on the stream."""
        return self._apply(inputs, 0, self._stage.stream_steps)

    def apply_to_batch(self, rows: DataFrame) -> DataFrame:
        """Apply the steps that run on each micro-batch to the output of the stream's steps."""
        return self._apply([rows], self._stage.stream_steps, len(self._steps))

    def _apply(self, inputs: Sequence[DataFrame], first: int, end: int) -> DataFrame:
        frames = list(inputs)
        for position in range(first, end):
            frames = [self.apply_step(position, frames)]
        assert len(frames) == 1, "a stage with several inputs has a step that joins them"
        return frames[0]

    def _applied(self, step: Step) -> ApplyStep:
        if isinstance(step, SqlStep):
            text = step.sql
            return lambda views: sql.apply(views, text)
        if isinstance(step, PythonStep):
            path = self._loaded.path(step.python.file)
            function = python.load(path, step.python.function)
            return lambda views: python.apply(_one_each(views), path, function)
        if isinstance(step, WatermarkStep):
            mark = step.watermark
            return lambda views: _only(views).withWatermark(mark.column, mark.delay)
        if isinstance(step, DeduplicateStep):
            same = step.deduplicate
            return lambda views: deduplicate.apply(_only(views), same)
        assert isinstance(step, StatefulStep)
        state, mode = step.stateful, self._stage.mode
        processor = stateful.load(self._loaded.path(state.file), state)
        return lambda views: stateful.apply(_only(views), state, processor, mode)


def _only(views: Mapping[str, DataFrame]) -> DataFrame:
    return next(iter(views.values()))


def _one_each(views: Mapping[str, DataFrame]) -> Mapping[str, DataFrame]:
    """The views without a single input's second name."""
    frames = list(views.values())
    return {"input": frames[0]} if all(frame is frames[0] for frame in frames) else views
