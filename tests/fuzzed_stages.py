"""Random stages that keep state, and random changes of them, for comparing what `plan` says with what Spark does."""

from __future__ import annotations

import dataclasses
import functools
import random
from dataclasses import dataclass

from headwater.pipelines.definition import Loaded, SqlStep
from headwater.pipelines.definition.loading import parse
from headwater.pipelines.deployment.changes import Deployed, Effect, changes_of_stage
from headwater.pipelines.deployment.stage_record import StageRecord, record_of

__all__ = ["Fuzzed", "classify", "fuzzed_change", "fuzzed_pair", "pipeline_of", "shape_of"]

AGGREGATES = (
    "sum(a)", "sum(b)", "max(a)", "max(b)", "min(a)", "min(b)", "count(*)", "count(b)",
    "sum(a) FILTER (WHERE b > 3)", "sum(a) FILTER (WHERE b > 5)", "first(b)", "first(b) IGNORE NULLS",
    "last(b)", "sum(a + b)", "bit_or(a)", "count_if(b > 4)", "max_by(a, b)", "max(a) FILTER (WHERE a < 50)",
)  # fmt: skip
KEYS = ("k", "l", "k, l", "l, k", "k % 2", "k, window(at, '10 seconds')")
KEYS_WITHOUT_K = (KEYS.index("l"), KEYS.index("k % 2"))
FILTERS = ("", "WHERE a > 5", "WHERE b IS NOT NULL", "WHERE a > 5 AND b < 8")
SHOWN = (
    "{}", "{} * 2", "{} + 1", "round({}, 1)", "abs({})", "-({})", "({} + 3) * 2", "coalesce({}, 0)",
    "CASE WHEN {} > 10 THEN 1 ELSE 0 END", "CAST({} AS STRING)",
)  # fmt: skip
HAVINGS = ("", "HAVING {} > 10", "HAVING {} >= 4", "HAVING k > 1", "HAVING k > 1 AND {} > 10")
VIEWS = ("", "LATERAL VIEW explode(array(1, 2)) x AS n", "LATERAL VIEW explode(array(1, 2, 3)) x AS n")


@dataclass(frozen=True)
class Fuzzed:
    """One stage: `columns` are aggregates by their places among AGGREGATES, each with how it is shown and its name."""

    key: int
    columns: tuple[tuple[int, int, str], ...]
    filter: int = 0
    having: tuple[int, int] = (0, 0)
    view: int = 0
    behind: tuple[int, ...] | None = None
    layout: bool = False

    def sql(self) -> str:
        """The text of its first step."""
        shown = ", ".join(f"{SHOWN[how].format(AGGREGATES[each])} AS {name}" for each, how, name in self.columns)
        having = HAVINGS[self.having_used()].format(AGGREGATES[self.having[1]])
        text = f"SELECT {shown} FROM input {VIEWS[self.view]} {FILTERS[self.filter]} GROUP BY {KEYS[self.key]} {having}"
        return f"{text.replace(', ', ' ,   ')} -- laid out" if self.layout else text

    def having_used(self) -> int:
        """The place of its HAVING among HAVINGS; none where it asks for k, which is no key."""
        is_of_key = "k >" in HAVINGS[self.having[0]] and self.key in KEYS_WITHOUT_K
        return 0 if is_of_key else self.having[0]

    def steps(self) -> list[str]:
        """The texts of its steps."""
        if self.behind is None:
            return [self.sql()]
        names = [self.columns[each][2] for each in self.behind]
        return [self.sql(), f"SELECT {', '.join(f'{name} AS {name}2' for name in names)} FROM input"]

    def state(self) -> tuple[object, ...]:
        """What the state holds, by a model that knows how the text was made: keys, aggregates in order, what feeds it.

        Spark makes one operator of both steps, with the columns in the order of the second one, unless a HAVING of an
        aggregate stands between them.
        `coalesce(count(*), 0)` and the like, which the optimizer takes apart, make a state of their own.
        """
        having = self.having_used()
        is_between = having not in (0, HAVINGS.index("HAVING k > 1"))
        behind = range(len(self.columns)) if self.behind is None else self.behind
        used = sorted(behind) if is_between else list(behind)
        shown = [self.columns[each][:2] for each in used]
        opaque = [(each, how) for each, how in shown if how >= SHOWN.index("coalesce({}, 0)")]
        kept = [each for each, _ in shown]
        on_key = having if "k >" in HAVINGS[having] else 0
        if is_between:
            kept.append(self.having[1])
        return KEYS[self.key], tuple(dict.fromkeys(kept)), self.filter, self.view, on_key, tuple(opaque)


def fuzzed_pair(chance: random.Random) -> tuple[Fuzzed, Fuzzed]:
    """A stage and one to three changes of it."""
    count = chance.randint(1, 4)
    columns = tuple(
        (chance.randrange(len(AGGREGATES)), chance.randrange(len(SHOWN)), f"c{number}") for number in range(count)
    )
    behind = tuple(sorted(chance.sample(range(count), chance.randint(1, count)))) if chance.random() < 0.3 else None
    before = Fuzzed(
        chance.randrange(len(KEYS)),
        columns,
        chance.randrange(len(FILTERS)),
        (chance.choice((0, 0, *range(len(HAVINGS)))), chance.randrange(len(AGGREGATES))),
        chance.choice((0, 0, 0, 1, 2)),
        behind,
    )
    return before, fuzzed_change(chance, before)


def fuzzed_change(chance: random.Random, stage: Fuzzed) -> Fuzzed:
    """A stage after one to three changes of it."""
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        stage = _changed(chance, stage)
    return stage


def _changed(chance: random.Random, stage: Fuzzed) -> Fuzzed:
    columns = list(stage.columns)
    place = chance.randrange(len(columns))
    each, how, name = columns[place]
    kind = chance.randrange(12)
    if kind < 3:
        columns[place] = (each, chance.randrange(7), name)
    elif kind == 3:
        columns[place] = (chance.randrange(len(AGGREGATES)), how, name)
    elif kind < 6:
        columns[place] = (each, how, f"{name}r")
    elif kind == 6:
        chance.shuffle(columns)
    elif kind == 7:
        return dataclasses.replace(stage, filter=chance.randrange(len(FILTERS)))
    elif kind == 8:
        return dataclasses.replace(stage, having=(chance.randrange(len(HAVINGS)), stage.having[1]))
    elif kind == 9:
        return dataclasses.replace(stage, key=chance.randrange(len(KEYS)))
    elif kind == 10:
        return dataclasses.replace(stage, view=chance.randrange(len(VIEWS)), layout=not stage.layout)
    elif stage.behind is not None:
        some = tuple(chance.sample(range(len(columns)), chance.randint(1, len(columns))))
        return dataclasses.replace(stage, behind=some)
    return dataclasses.replace(stage, columns=tuple(columns))


def pipeline_of(stage: Fuzzed) -> str:
    """The stage in a file."""
    steps = "\n".join(f"      - sql: |\n          {text}" for text in stage.steps())
    return (
        "pipeline: fuzz\ntopics:\n  input: {value: string}\nstages:\n  - name: s\n"
        "    from: {topic: input, watermark: {column: at, delay: 1 second}}\n    mode: update\n"
        f"    steps:\n{steps}\n    to: [{{topic: out}}]\n"
    )


@functools.cache
def _template() -> Loaded:
    return parse(pipeline_of(Fuzzed(0, ((0, 0, "c0"),))), "fuzz.yaml", folder="/flows")


@functools.lru_cache(8)
def record(stage: Fuzzed) -> StageRecord:
    """The stage as a run would note it. Its file is read once for all of them."""
    loaded = _template()
    steps = tuple(SqlStep(sql=text) for text in stage.steps())
    made = loaded.pipeline.stages[0].model_copy(update={"steps": steps})
    return dataclasses.replace(record_of(loaded, made, {}), is_stateful=True)


def classify(before: Fuzzed, now: Fuzzed) -> bool:
    """Whether `plan` calls the change safe."""
    changes = changes_of_stage("s", Deployed(True, record(before)), record(now))
    return all(change.effect is Effect.SAFE for change in changes)


def shape_of(stage: Fuzzed) -> str:
    """A stage without its names and its layout: two of one shape ask Spark for the same plan."""
    columns = tuple((each, how, f"c{number}") for number, (each, how, _) in enumerate(stage.columns))
    return " | ".join(dataclasses.replace(stage, columns=columns, layout=False).steps())
