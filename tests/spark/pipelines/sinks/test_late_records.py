"""Rows that are too late for a watermark: each record is either counted or in the topic of late records."""

from __future__ import annotations

import datetime as dt
import json
import random
from collections import Counter
from functools import reduce
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import DataFrame

from headwater.pipelines import columns
from headwater.pipelines.definition import Stage
from headwater.pipelines.definition.late_rule import LateRule, late_rule
from headwater.pipelines.engine.batch_writing import OnStep
from headwater.pipelines.engine.late_records import late_records
from headwater.pipelines.errors import PipelineFailed
from headwater.pipelines.monitoring.progress import StageTotals
from headwater.pipelines.sources.inputs import StageInputs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow

TIME = {"type": "string", "format": "date-time"}
EVENT = json.dumps(
    {"type": "object", "properties": {"id": {"type": "integer"}, "kind": {"type": "string"}, "at": TIME}}
)
STAGES = ("tumbling", "once", "sliding")
# In the last stage a record may be in several windows, and some records are in none.
PIPELINE = """\
pipeline: p
topics: {"@in": {value: json, schema: event.json}}
tables: {kinds: {format: json, path: kinds.json}}
stages:
  - name: tumbling
    from:
      topic: "@in"
      max_offsets_per_trigger: 40
      watermark: {column: at, delay: 10 minutes, late: "@tumbling_late"}
    sql: SELECT window(at, '10 minutes') AS w, collect_list(id) AS ids FROM `@in` GROUP BY 1
    to: {topic: "@tumbling"}
  - name: once
    from:
      topic: "@in"
      max_offsets_per_trigger: 40
      watermark: {column: at, delay: 10 minutes, late: "@once_late"}
    steps:
      - sql: SELECT id, at FROM `@in`
      - deduplicate: {by: [id]}
    to: {topic: "@once", key: id}
  - name: sliding
    from:
      topic: "@in"
      max_offsets_per_trigger: 40
      watermark: {column: at, delay: 10 minutes, late: "@sliding_late"}
    sql: |
      SELECT kind, collect_list(id) AS ids FROM `@in` JOIN kinds USING (kind)
      WHERE id % 5 <> 0 GROUP BY window(at, '10 minutes', '5 minutes', '2 minutes'), kind
    to: {delta: lake/sliding}
"""
START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
RECORDS = 120


def events(seed: int) -> list[dict[str, Any]]:
    """Events of two hours, some of which come more than an hour too late."""
    chance = random.Random(seed)
    behind = [chance.choice([0, 5, 60, 110]) * chance.random() for _ in range(RECORDS)]
    minutes = [number * 120 / RECORDS - minute for number, minute in enumerate(behind)]
    return [
        {"id": number, "kind": f"k{number % 3}", "at": (START + dt.timedelta(minutes=minute)).isoformat()}
        for number, minute in enumerate(minutes)
    ]


class KilledError(Exception):
    """As the end of the process would be."""


def killed(killed_stage: str, number: int, name: str) -> OnStep:
    """Ends a stage at a step of a batch, or of a later one."""

    def on_step(stage: str, batch: int, step: str) -> None:
        if stage == killed_stage and batch >= number and step == name:
            raise KilledError(f"{stage} {batch} {step}")

    return on_step


def test_each_record_is_counted_or_late_once_though_batches_are_repeated(lab: Any) -> None:
    lab.write("event.json", EVENT)
    lab.write("kinds.json", '{"kind": "k0"}\n{"kind": "k1"}\n')
    given = events(56)
    lab.produce("@in", [(f"key {e['id']}", e, [("trace", str(e["id"]).encode())]) for e in given])

    # The checkpoint begins without a topic for late records, which is made when it is needed.
    without_topic = PIPELINE.replace(', late: "@tumbling_late"', "")
    with pytest.raises(PipelineFailed):
        lab.run(without_topic, stages=("tumbling",), on_step=killed("tumbling", 1, "begun"))
    assert f"{lab.prefix}tumbling_late" not in {topic.name for topic in lab.admin.list_topics()}
    # Batches end before the commit of their transaction, and after it; the next run repeats them.
    for stages, step in ((("tumbling",), "records_sent"), (("tumbling", "once"), "committed")):
        with pytest.raises(PipelineFailed, match=f"{stages[-1]} 2 {step}"):
            lab.run(PIPELINE, stages=stages, on_step=killed(stages[-1], 2, step))
    # Closes all windows; a record that the WHERE leaves out would not move the watermark.
    lab.produce("@in", [{"id": 10_001, "kind": "k0", "at": "2026-01-02T00:01:00Z"}])
    lab.run(PIPELINE)

    everything = set(range(RECORDS))
    late = {name: Counter(record.json["id"] for record in lab.read(f"@{name}_late")) for name in STAGES}
    counted = Counter(number for row in lab.values("@tumbling") for number in row["ids"])
    assert counted + late["tumbling"] == Counter(everything)
    assert Counter(row["id"] for row in lab.values("@once")) - Counter([10_001]) + late["once"] == Counter(everything)
    windows = Counter(number for (ids,) in lab.delta("lake/sliding", "ids") for number in ids)
    meant = {number for number in everything if number % 5 and number % 3 < 2}
    assert set(windows) | set(late["sliding"]) == meant
    assert not set(windows) & set(late["sliding"])
    assert set(late["sliding"].values()) == {1}
    assert 1 in windows.values()  # dropped from one of its two windows
    # A row behind the watermark whose window is open is counted; a deduplication drops it.
    assert late["tumbling"]
    assert late["once"].keys() > late["tumbling"].keys()

    for record in lab.read("@tumbling_late"):
        number = record.json["id"]
        assert (record.key, record.json) == (f"key {number}".encode(), given[number])
        assert record.headers["trace"] == str(number).encode()
        assert record.headers["headwater.stage"] == b"tumbling"
        assert record.headers["headwater.topic"] == f"{lab.prefix}in".encode()
        assert record.headers["headwater.offset"] == str(number).encode()
        assert "headwater.expectation" not in record.headers
        error = record.headers["headwater.error"].decode()
        assert error.startswith(f"late: the event time {given[number]['at'][:19]}")
        assert "is behind the watermark 2026-01-01T" in error
        assert error.endswith("Z (at, delay 10 minutes)")


def test_late_records_are_counted_and_a_batch_without_any_is_read_once(
    lab: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    again = StageInputs.read_again

    def noted(inputs: StageInputs, position: int, plan: Any) -> Any:
        asked.append(position)
        return again(inputs, position, plan)

    monkeypatch.setattr(StageInputs, "read_again", noted)
    lab.write("event.json", EVENT)
    lab.write("kinds.json", '{"kind": "k0"}\n')
    totals: dict[str, StageTotals] = {}

    def run(text: str) -> None:
        for stage, each in lab.run(text, stages=("tumbling",)).totals.items():
            totals[stage] = each

    moments = ["2026-01-01T00:00:00Z", "2026-01-01T01:00:00Z"]
    lab.produce("@in", [{"id": n, "kind": "k0", "at": at} for n, at in enumerate(moments, 1)])
    run(PIPELINE.replace("max_offsets_per_trigger: 40", "max_offsets_per_trigger: 1"))
    assert asked == []
    # The watermark is 00:50: what ends there is late, what is open is not.
    lab.produce("@in", [{"id": 3, "at": "2026-01-01T00:49:59Z"}, {"id": 4, "at": "2026-01-01T00:50:00Z"}, "{"])
    run(PIPELINE)
    assert asked == [0, 0]  # for the record that is no JSON, and for the late one
    assert [record.json["id"] for record in lab.read("@tumbling_late")] == [3]
    assert (totals["tumbling"].late_records, totals["tumbling"].undecodable) == (1, 1)
    assert totals["tumbling"].dead_letters == 1


PROCESSOR = """\
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor


class Passing(StatefulProcessor):
    def init(self, handle):
        pass

    def handleInputRows(self, key, rows, timers):
        for row in rows:
            yield Row(id=row.id)

    def close(self):
        pass
"""
OTHERS = """\
pipeline: others
topics: {"@in": {value: json, schema: event.json}}
stages:
  - name: sessions
    from: {topic: "@in", watermark: {column: at, delay: 10 minutes, late: "@sessions_late"}}
    sql: SELECT kind, count(*) AS n FROM `@in` GROUP BY session_window(at, '5 minutes'), kind
    to: {topic: "@sessions"}
  - name: passing
    from: {topic: "@in", watermark: {column: at, delay: 10 minutes, late: "@passing_late"}}
    steps:
      - stateful: {file: p.py, processor: Passing, by: [kind], output: "id BIGINT", time: event_time}
    to: {topic: "@passing"}
"""


def test_sessions_and_processors_drop_what_is_late_for_them(lab: Any) -> None:
    lab.write("event.json", EVENT)
    lab.write("p.py", PROCESSOR)
    lab.produce("@in", [{"id": 1, "kind": "a", "at": "2026-01-01T01:00:00Z"}])
    lab.run(OTHERS)
    # The watermark is 00:50: a session of five minutes is open from 00:45 on.
    moments = {2: "00:44:00", 3: "00:45:00", 4: "00:45:01", 5: "00:50:00", 6: "00:50:01"}
    lab.produce("@in", [{"id": n, "kind": f"k{n}", "at": f"2026-01-01T{at}Z"} for n, at in moments.items()])
    lab.run(OTHERS)
    lab.produce("@in", [{"id": 7, "kind": "a", "at": "2026-01-02T00:00:00Z"}])
    lab.run(OTHERS)
    assert sorted(record.json["id"] for record in lab.read("@sessions_late")) == [2, 3]
    assert sorted(row["kind"] for row in lab.values("@sessions")) == ["a", "k4", "k5", "k6"]
    assert sorted(record.json["id"] for record in lab.read("@passing_late")) == [2, 3, 4, 5]
    assert sorted(row["id"] for row in lab.values("@passing")) == [1, 6, 7]


# -- the boundary --------------------------------------------------------------------------------------------------


@pytest.fixture
def far_away(delta_spark: SparkSession) -> SparkSession:
    """A session in a time zone with daylight saving time."""
    session = delta_spark.newSession()
    session.conf.set("spark.sql.session.timeZone", "America/New_York")
    return session


def decoded(session: SparkSession, *moments: str) -> DataFrame:
    """Decoded records of a topic with these event times."""
    times = [f"TIMESTAMP'{moment}'" if moment else "NULL" for moment in moments]
    texts = ", ".join(f"({number}, {time})" for number, time in enumerate(times))
    origin = (
        f"'t' AS {columns.TOPIC}, 0 AS {columns.PARTITION}, CAST(n AS BIGINT) AS {columns.OFFSET}, "
        f"current_timestamp() AS {columns.TIMESTAMP}, CAST(NULL AS BINARY) AS {columns.KEY}, "
        f"CAST('{{}}' AS BINARY) AS {columns.VALUE}, CAST(NULL AS STRING) AS {columns.ERROR}"
    )
    return session.sql(f"SELECT n % 2 AS shop, at, {origin} FROM VALUES {texts} AS x(n, at)")


def rule(**more: Any) -> LateRule:
    source = {"topic": "t", "watermark": {"column": "at", "delay": "10 minutes", "late": "l"}}
    found = late_rule(Stage.model_validate({"name": "s", "from": source, "to": {"topic": "out"}} | more))
    assert found is not None
    return found


LATE: list[tuple[str | None, list[str]]] = [
    # at or before 12:00:00: what a deduplication drops
    (None, ["11:30:00", "11:55:00", "11:59:59.999999", "12:00:00"]),
    ("window(at, '10 minutes')", ["11:30:00", "11:55:00", "11:59:59.999999"]),
    ("window(at, '1 hour')", ["11:30:00", "11:55:00", "11:59:59.999999"]),
    ("window(at, '45 minutes')", ["11:30:00", "11:55:00", "11:59:59.999999"]),
    # the last of the sliding windows decides: that of 11:55 ends at 12:05
    ("window(at, '10 minutes', '5 minutes')", ["11:30:00"]),
    ("window(at, '20 minutes', '10 minutes')", ["11:30:00"]),
    # windows that begin 3 minutes after the full ten: the last one that is closed ends at 11:53
    ("window(at, '10 minutes', '10 minutes', '3 minutes')", ["11:30:00"]),
    ("window(at, '10 minutes', '10 minutes', '-5 minutes')", ["11:30:00"]),
    ("session_window(at, '5 minutes')", ["11:30:00", "11:55:00"]),
    ("session_window(at, '30 minutes')", ["11:30:00"]),
    ("session_window(at, '31 minutes')", []),
    ("at", ["11:30:00", "11:55:00", "11:59:59.999999", "12:00:00"]),
]


def test_a_record_is_late_when_its_last_window_ends_at_or_before_the_watermark(far_away: SparkSession) -> None:
    times = ["11:30:00", "11:55:00", "11:59:59.999999", "12:00:00", "12:00:00.000001", "13:00:00"]
    records = decoded(far_away, *(f"2026-03-08 {time}Z" for time in times), "")
    watermark = dt.datetime(2026, 3, 8, 12, tzinfo=dt.UTC)
    frames = []
    for number, (by, _) in enumerate(LATE):
        how: dict[str, Any] = {"steps": [{"deduplicate": {"by": ["shop"]}}]}
        if by is not None:
            how = {"sql": f"SELECT shop, {by} AS w, count(*) AS n FROM t GROUP BY 1, 2"}
        late = late_records(records, rule(**how), int(watermark.timestamp() * 1000))
        frames.append(late.selectExpr(f"{number} AS number", columns.OFFSET, columns.ERROR))
    found: list[tuple[str | None, list[str]]] = [(by, []) for by, _ in LATE]
    for row in reduce(DataFrame.unionAll, frames).collect():
        time = times[row[columns.OFFSET]]
        found[row.number][1].append(time)
        said = f"2026-03-08T{time}Z is behind the watermark 2026-03-08T12:00:00Z (at, delay 10 minutes)"
        assert row[columns.ERROR] == f"late: the event time {said}"
    assert [(by, sorted(late)) for by, late in found] == LATE
