"""The DAGs in a real Airflow: imported without a fault, and run by `dag.test()` on a broker and Spark; a load twice."""

from __future__ import annotations

import json
import uuid
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from tests.airflow.airflow_home import CONNECTION, DAGS, ROOT, AirflowHome
from tests.airflow.conftest import MakeHome, Write
from tests.conftest import TopicFactory
from tests.end_to_end.delta_log import delta_rows

# Spark starts five times, which takes long on a busy machine.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

HOUR_MS = 3_600_000


def text(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat()


def drive(home: AirflowHome, *runs: tuple[str, int]) -> dict[str, Any]:
    """Import the DAGs and run some of them; what the driver saw."""
    result = home.folder / "seen.json"
    wanted = {"folder": str(DAGS), "result": str(result), "runs": [[name, text(date)] for name, date in runs]}
    done = home.run(str(ROOT / "tests" / "airflow" / "dag_driver.py"), stdin=json.dumps(wanted))
    assert done.returncode == 0, done.stdout + done.stderr
    seen: dict[str, Any] = json.loads(result.read_text())
    seen["output"] = done.stdout + done.stderr
    return seen


def commit(servers: str, group: str, topic: str, offset: int) -> None:
    consumer = Consumer({"bootstrap.servers": servers, "group.id": group})
    consumer.commit(offsets=[TopicPartition(topic, 0, offset)], asynchronous=False)
    consumer.close()


def offsets_by_hour(table: Path) -> Counter[tuple[int, int]]:
    """How many rows each partition has of each hour; every offset is there once."""
    rows = delta_rows(table)
    assert len({(row["partition"], row["offset"]) for row in rows}) == len(rows)
    return Counter((row["partition"], int(row["hour"])) for row in rows)


def values(servers: str, topic: str, count: int) -> list[bytes]:
    """The committed records of partition 0, and a second more to see that there are no others."""
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "values", "isolation.level": "read_committed"})
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[bytes] = []
    while (message := consumer.poll(60 if len(found) < count else 1)) is not None:
        assert message.error() is None
        found.append(message.value() or b"")
    consumer.close()
    return found


def test_a_load_runs_twice_with_one_result_and_maintenance_publish_and_lag_run(
    make_home: MakeHome, new_topic: TopicFactory, write: Write, bootstrap_servers: str, tmp_path: Path, hour_ms: int
) -> None:
    flights, published, group = new_topic(2), new_topic(1), f"flow-{uuid.uuid4().hex[:8]}"
    hour = hour_ms // HOUR_MS % 24
    write(flights, [(number % 2, hour_ms + number) for number in range(20)])
    # Behind the first record of the next hour, another one of this hour: it is late, and the next run's.
    write(flights, [(0, hour_ms + HOUR_MS), (0, hour_ms + 1), (1, hour_ms + HOUR_MS)])
    commit(bootstrap_servers, group, flights, 8)
    lag = {"group": group, "connection": CONNECTION}
    home = make_home(
        {
            "connection": CONNECTION,
            "loads": [
                {
                    "name": "hourly",
                    "topics": [flights],
                    "to": f"{tmp_path}/lake/{{topic}}",
                    "start": "2024-01-01",
                    "idle_s": 0.1,
                    "partition_by": ["hour(timestamp)"],
                    "check": {"fresh_s": 60},
                    "maintenance": {"schedule": "0 3 * * 0", "verify": False, "vacuum_hours": None},
                }
            ],
            "publish": [
                {
                    "name": "back",
                    "path": f"{tmp_path}/lake/{flights}",
                    "topic": published,
                    "key": ["partition"],
                    "what": "version",
                    "after": ["hourly"],
                }
            ],
            "lag": [{"name": "wide", "lag_max": 4, **lag}, {"name": "narrow", "lag_max": 3, **lag}],
        }
    )
    home.prepare()
    end = hour_ms + HOUR_MS
    load, maintain, publish = "headwater_load_hourly", "headwater_maintain_hourly", "headwater_publish_back"
    seen = drive(
        home, (load, end), (load, end), (maintain, end), (publish, end),
        ("headwater_lag_wide", end), ("headwater_lag_narrow", end),
    )  # fmt: skip
    assert seen["errors"] == {}
    assert [run["state"] for run in seen["runs"]] == ["success"] * 5 + ["failed"], seen["output"]
    assert [run["interval"] for run in seen["runs"][:2]] == [[text(hour_ms), text(end)]] * 2
    assert f"group {group} lags by more than 3 records: {flights}-0 4" in seen["output"]
    assert seen["output"].count('"outcome": "already loaded"') == 1
    assert offsets_by_hour(tmp_path / "lake" / flights) == {(0, hour): 10, (1, hour): 10}
    rows = [json.loads(value) for value in values(bootstrap_servers, published, 20)]
    assert sorted((row["partition"], row["offset"]) for row in rows) == sorted(
        (row["partition"], row["offset"]) for row in delta_rows(tmp_path / "lake" / flights)
    )
    [path] = (tmp_path / "lake" / flights / "_headwater" / "manifests").iterdir()
    manifest = json.loads(path.read_text())
    assert (manifest["rows"], manifest["late"]) == (20, 0)


def test_the_dags_have_the_structure_that_their_settings_say(make_home: MakeHome, tmp_path: Path) -> None:
    home = make_home(
        {
            "mail": {"to": ["ops@example.com"]},
            "loads": [
                {
                    "name": "hourly",
                    "topics": ["flights", "weather"],
                    "to": "hdfs://nn/lake/{topic}",
                    "start": "2024-01-01",
                    "catchup": True,
                    "maintenance": {"schedule": "0 3 * * 0"},
                }
            ],
            "events": [
                {"name": "files", "watch": "done", "topics": ["flights"], "to": "/lake/now", "connection": CONNECTION}
            ],
            "publish": [
                {"name": "totals", "path": "/lake/t", "topic": "t", "key": ["k"], "what": "changes",
                 "after": ["hourly"], "sql": "SELECT 1"},
                {"name": "files", "path": "/lake/f", "topic": "t", "key": ["k"], "what": "files",
                 "schedule": "0 1 * * *"},
            ],
        }
    )  # fmt: skip
    seen = drive(home)
    assert (seen["errors"], seen["warnings"]) == ({}, [])
    dags = seen["dags"]
    kinds = {"load_hourly", "maintain_hourly", "event_files", "publish_totals", "publish_files"}
    assert set(dags) == {f"headwater_{kind}" for kind in kinds}
    load = dags["headwater_load_hourly"]
    # A cron string would have empty intervals.
    assert (load["timetable"], load["catchup"]) == ("CronDataIntervalTimetable", True)
    assert {name: task["after"] for name, task in load["tasks"].items()} == {
        "wait": [], "load": ["wait"], "check": ["load"]
    }  # fmt: skip
    assert load["tasks"]["wait"]["mode"] == "reschedule"
    assert load["tasks"]["check"]["outlets"] == ["headwater/hourly/flights", "headwater/hourly/weather"]
    upkeep = dags["headwater_maintain_hourly"]["tasks"]
    verified = ["verify_flights", "verify_weather"]
    assert {name: task["after"] for name, task in upkeep.items()} == {
        **{name: [] for name in verified}, "optimize": verified, "vacuum": ["optimize"]
    }  # fmt: skip
    optimize = "OPTIMIZE delta.`hdfs://nn/lake/flights`; OPTIMIZE delta.`hdfs://nn/lake/weather`"
    assert upkeep["optimize"]["arguments"] == ["sql", "-e", optimize]
    pools = {task["pool"] for task in (load["tasks"]["load"], *upkeep.values())}
    assert pools == {"headwater_hourly"}
    assert dags["headwater_event_files"]["timetable"] == "AssetTriggeredTimetable"
    assert dags["headwater_event_files"]["max_active_runs"] == 1
    totals = dags["headwater_publish_totals"]["tasks"]
    assert {name: task["after"] for name, task in totals.items()} == {
        "make": [], "history": ["make"], "pin": ["history"], "publish": ["pin"], "published": ["pin", "publish"]
    }  # fmt: skip
    assert list(dags["headwater_publish_files"]["tasks"]) == ["publish"]
    for dag in dags.values():
        commands = [task for task in dag["tasks"].values() if task["kind"] == "HeadwaterOperator"]
        assert commands
        assert all(task["time_limit_s"] for task in commands)
        assert all(task["retries"] for task in commands if "--verify" not in task["arguments"])
