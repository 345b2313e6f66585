"""What a stage does in between: steps, joins of streams, deduplication, state of the user's own, output modes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from headwater.pipelines.errors import PipelineError

pytestmark = pytest.mark.slow

EVENT = json.dumps(
    {
        "type": "object",
        "properties": {
            "id": {"type": "integer"},
            "user": {"type": "string"},
            "at": {"type": "string", "format": "date-time"},
        },
    }
)
TOPICS = 'topics: {"@a": {value: json, schema: event.json}, "@b": {value: json, schema: event.json}}\n'


def event(number: int, user: str, minute: int) -> tuple[str, dict[str, Any]]:
    return user, {"id": number, "user": user, "at": f"2026-01-01T{minute // 60:02}:{minute % 60:02}:00Z"}


@pytest.fixture
def events(lab: Any) -> Any:
    lab.write("event.json", EVENT)
    return lab


def test_steps_follow_each_other_and_each_sees_the_one_before(events: Any) -> None:
    events.produce("@a", [event(n, "ann", n) for n in range(6)])
    events.write("odd.py", "def odd(rows):\n    return rows.where('id % 2 = 1')\n")
    events.run(
        TOPICS
        + """\
pipeline: p
stages:
  - name: s
    from: {topic: "@a", as: a}
    steps:
      - sql: SELECT id, user, at FROM a WHERE id > 1
      - python: {file: odd.py, function: odd}
      - sql: SELECT id * 10 AS tens FROM a
      - sql: SELECT tens + 1 AS result FROM input
    to: {delta: lake/s}
"""
    )
    assert events.delta("lake/s", "result") == [(31,), (51,)]


def test_two_streams_are_joined_within_a_bound_of_time(events: Any) -> None:
    events.produce("@a", [event(1, "ann", 0), event(2, "bob", 0), event(3, "far", 600)])
    events.produce("@b", [event(10, "ann", 5), event(20, "bob", 50), event(30, "far", 600)])
    text = (
        TOPICS
        + """\
pipeline: p
stages:
  - name: s
    from:
      - {topic: "@a", as: seen, watermark: {column: at, delay: 5 minutes}}
      - {topic: "@b", as: bought, watermark: {column: at, delay: 5 minutes}}
    sql: |
      SELECT seen.user, seen.id AS seen, bought.id AS bought
      FROM seen LEFT JOIN bought ON seen.user = bought.user
        AND bought.at BETWEEN seen.at AND seen.at + INTERVAL 10 MINUTES
    to: {topic: "@out", key: user}
"""
    )
    result = events.run(text)
    rows = sorted((v["user"], v["seen"], v.get("bought")) for v in events.values("@out"))
    # The outer row of bob is known once the watermark has passed its bound.
    assert rows == [("ann", 1, 10), ("bob", 2, None), ("far", 3, 30)]
    assert result.totals["s"].late_rows == 0


def test_records_that_cannot_be_decoded_are_told_by_the_topic_they_come_from(events: Any) -> None:
    events.produce("@a", [event(1, "ann", 0), "{bad a"])
    events.produce("@b", [event(2, "ann", 0), ("k", "{bad b"), ("k", "{bad c")])
    result = events.run(
        TOPICS
        + """\
pipeline: two
stages:
  - name: s
    from: [{topic: "@a", as: a}, {topic: "@b", as: b}]
    expect: [{name: small, that: id < 2}, {name: others, that: user <> 'ann', otherwise: warn}]
    sql: SELECT id, user FROM a UNION ALL SELECT id, user FROM b
    to: {delta: lake/s, when: user = 'ann'}
"""
    )
    assert events.delta("lake/s", "id") == [(1,)]
    assert [seen.value for seen in events.read("@a.dead_letters")] == [b"{bad a"]
    assert [seen.value for seen in events.read("@b.dead_letters")] == [b"{bad b", b"{bad c"]
    (row,) = events.read("two.s.dead_letters")
    assert row.json == {"id": 2, "user": "ann"}
    assert result.totals["s"].dead_letters == 4
    assert (result.totals["s"].written, result.totals["s"].unmet) == (1, {"small": 1, "others": 1})


def test_rows_that_are_the_same_are_written_once_across_runs(events: Any) -> None:
    text = (
        TOPICS
        + """\
pipeline: p
stages:
  - name: within
    from: {topic: "@a", as: a}
    steps:
      - deduplicate: {by: [id, user], within: 1 hour, column: at}
      - sql: SELECT id, user FROM input
    to: {delta: lake/within}
"""
    )
    events.produce("@a", [event(1, "ann", 0), event(1, "ann", 1), event(1, "bob", 1)])
    events.run(text)
    events.produce("@a", [event(1, "ann", 2), event(2, "ann", 3)])
    events.run(text)
    assert events.delta("lake/within", "id", "user") == [(1, "ann"), (1, "bob"), (2, "ann")]


def test_windows_are_counted_once_they_are_closed_or_each_time_they_change(events: Any) -> None:
    text = (
        TOPICS
        + """\
pipeline: p
stages:
  - name: append
    from: {topic: "@a", as: a, watermark: {column: at, delay: 1 minute}}
    sql: SELECT `window`.start AS hour, count(*) AS events FROM a GROUP BY window(at, '1 hour')
    to: {delta: lake/closed}
  - name: update
    mode: update
    from: {topic: "@a", as: a, watermark: {column: at, delay: 1 minute}}
    sql: SELECT `window`.start AS hour, count(*) AS events FROM a GROUP BY window(at, '1 hour')
    to: [{delta: lake/running, merge: {keys: hour}}, {topic: "@changes", key: hour}]
  - name: complete
    mode: complete
    from: {topic: "@a", as: a}
    sql: SELECT user, count(*) AS events FROM a GROUP BY 1
    to: {delta: lake/users}
"""
    )
    events.produce("@a", [event(n, "ann", n * 20) for n in range(6)])
    events.run(text)
    assert [count for _, count in events.delta("lake/closed", "hour", "events")] == [3]
    assert [count for _, count in events.delta("lake/running", "hour", "events")] == [3, 3]
    events.produce("@a", [event(9, "bob", 119)])
    events.run(text)
    assert [count for _, count in events.delta("lake/running", "hour", "events")] == [3, 4]
    assert [value["events"] for value in events.values("@changes")] in ([3, 3, 4], [3, 4, 3])
    assert events.delta("lake/users", "user", "events") == [("ann", 6), ("bob", 1)]


PROCESSORS = """\
from collections.abc import Iterator

import pandas as pd
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor
from pyspark.sql.types import IntegerType, StructField, StructType


class Count(StatefulProcessor):
    def __init__(self, factor: int = 1) -> None:
        self.factor = factor

    def init(self, handle) -> None:
        self.seen = handle.getValueState("seen", StructType([StructField("n", IntegerType())]))

    def add(self, number: int) -> int:
        before = self.seen.get()[0] if self.seen.exists() else 0
        self.seen.update((before + number,))
        return (before + number) * self.factor

    def handleInputRows(self, key, rows, timers) -> Iterator[Row]:
        yield Row(user=key[0], events=self.add(len(list(rows))))

    def close(self) -> None:
        pass


class CountFrames(Count):
    def handleInputRows(self, key, rows, timers) -> Iterator[pd.DataFrame]:
        yield pd.DataFrame({"user": [key[0]], "events": [self.add(sum(len(frame) for frame in rows))]})
"""


def test_state_of_the_users_own_lasts_from_run_to_run(events: Any) -> None:
    events.write("processors.py", PROCESSORS)
    processors = {"row": "Count", "pandas": "CountFrames"}
    stages = "".join(
        f"""\
  - name: {form}
    mode: update
    from: {{topic: "@a", as: a}}
    steps:
      - stateful:
          {{file: processors.py, processor: {processor}, by: user, output: 'user STRING, events INT', form: {form},
           options: {{factor: 10}}}}
    to: {{topic: "@{form}", key: user}}
"""
        for form, processor in processors.items()
    )

    def counts() -> list[list[tuple[str, int]]]:
        return [sorted((v["user"], v["events"]) for v in events.values(f"@{form}")) for form in processors]

    text = f"{TOPICS}pipeline: p\nstages:\n{stages}"
    events.produce("@a", [event(1, "ann", 0), event(2, "ann", 1), event(3, "bob", 2)])
    events.run(text)
    assert counts() == [[("ann", 20), ("bob", 10)]] * 2
    events.produce("@a", [event(4, "ann", 3)])
    events.run(text)
    assert counts() == [[("ann", 20), ("ann", 30), ("bob", 10)]] * 2


def test_a_function_of_two_inputs_gets_them_by_name(events: Any) -> None:
    events.produce("@a", [event(1, "ann", 0)])
    events.produce("@b", [event(2, "bob", 0)])
    events.write("both.py", "def both(left, right):\n    return left.select('id').unionAll(right.select('id'))\n")
    events.run(
        TOPICS
        + """\
pipeline: p
stages:
  - name: s
    from: [{topic: "@a", as: left}, {topic: "@b", as: right}]
    python: {file: both.py, function: both}
    to: {delta: lake/s}
"""
    )
    assert events.delta("lake/s", "id") == [(1,), (2,)]


def test_every_mistake_that_spark_finds_is_told_at_its_step(events: Any) -> None:
    events.write(
        "bad.py",
        "def bad(rows):\n    return rows.nothing\n",
    )
    with pytest.raises(PipelineError) as caught:
        events.run(
            TOPICS
            + """\
pipeline: p
stages:
  - name: one
    from: {topic: "@a", as: a}
    steps: [{sql: SELECT id FROM a}, {sql: SELECT who FROM (SELECT id FROM a)}]
    to: {delta: x}
  - {name: two, from: {topic: "@a", as: a}, steps: [{watermark: {column: id, delay: 1 day}}], to: {delta: y}}
  - {name: three, from: {topic: "@a", as: a}, python: {file: bad.py, function: bad}, to: {delta: z}}
  - {name: four, from: {topic: "@a", as: a}, sql: SELECT * EXCEPT (id) FROM a, to: {delta: v, merge: {keys: missing}}}
  - name: five
    from: {topic: "@a", as: a}
    sql: SELECT array(id) AS ids FROM a
    to: {jdbc: "jdbc:derby:x", table: t}
  - name: six
    from: {topic: "@a", as: a}
    sql: SELECT * EXCEPT (id) FROM a
    to:
      - {topic: "@six", when: missing > 1}
      - {delta: lake/six, partition_by: [user AS who], when: who = 'ann'}
      - {files: six, format: json, when: count(*) > 1}
      - {delta: lake/seven, when: "array(user)"}
"""
        )
    found = {problem.field: problem.message for problem in caught.value.problems}
    assert set(found) == {
        "stages[0].steps[1].sql", "stages[1].steps[0].watermark.column", "stages[2].python",
        "stages[3].to", "stages[4].to", *(f"stages[5].to[{position}].when" for position in range(4)),
    }  # fmt: skip
    assert "Spark refuses the SQL: [UNRESOLVED_COLUMN" in found["stages[0].steps[1].sql"]
    assert "(line 2)" in found["stages[2].python"]
    assert found["stages[1].steps[0].watermark.column"] == "the column id is bigint, not a timestamp"
    assert "`missing` cannot be resolved" in found["stages[3].to"]
    assert "the column ids is array<bigint>" in found["stages[4].to"]
    for position, column in enumerate(["missing", "who"]):
        said = found[f"stages[5].to[{position}].when"]
        assert "Spark refuses the condition: [UNRESOLVED_COLUMN" in said
        assert f"`{column}` cannot be resolved" in said
