"""Airflow's services for real, once: an event starts a run, whose task is killed and tried again; then a backfill.

The backfill loads while a scheduled run of its DAG waits for its topics.
"""

from __future__ import annotations

import json
import os
import signal
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.airflow.airflow_home import CONNECTION, AirflowHome, group_members, processes_with, wait_until
from tests.airflow.conftest import MakeHome, Write
from tests.conftest import TopicFactory
from tests.end_to_end.delta_log import delta_rows

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

HOUR_MS, HOUR_S = 3_600_000, 3_600
#: For a task on a busy machine: Spark starts, and Airflow waits for its heartbeats.
RUN_S = 400


def text(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat()


def runs_of(home: AirflowHome, dag: str, state: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = home.api("GET", f"/dags/{dag}/dagRuns?state={state}")["dag_runs"]
    return found


def loading(target: Path) -> list[int]:
    """The processes of `headwater load` into a target, once their JVM runs."""
    commands = [pid for pid, line in processes_with(str(target)).items() if "headwater" in line and "load" in line]
    groups = {pid: group_members(os.getpgid(pid)) for pid in commands}
    return [pid for pid, members in groups.items() if any(is_java(member) for member in members)]


def is_java(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/exe").readlink().name == "java"
    except OSError:
        return False


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_an_event_starts_a_run_that_outlives_its_tasks_death_and_a_backfill_passes_a_run_that_waits(
    make_home: MakeHome, new_topic: TopicFactory, write: Write, tmp_path: Path, hour_ms: int
) -> None:
    watched, flights, weather = new_topic(1), new_topic(2), new_topic(1)
    live, hours = tmp_path / "live", tmp_path / "hours"
    home = make_home(
        {
            "connection": CONNECTION,
            "events": [
                {
                    "name": "live", "watch": watched, "topics": [flights], "to": str(live), "connection": CONNECTION,
                    "retry_delay_s": 1, "poll_s": 1,
                }
            ],
            "loads": [
                {
                    "name": "hourly", "topics": [flights, weather], "to": f"{hours}/{{topic}}",
                    "start": text(hour_ms), "idle_s": 0.1, "lateness_s": 2 * HOUR_S, "poke_s": HOUR_S,
                }
            ],
        }
    )  # fmt: skip
    # To parse the DAGs again each half minute keeps a core busy.
    home.environment["AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL"] = str(HOUR_S)
    home.prepare()
    write(flights, [(number % 2, hour_ms + number * HOUR_MS // 10) for number in range(20)])
    write(weather, [(0, hour_ms + number) for number in range(5)])
    home.start()
    event, hourly = "headwater_event_live", "headwater_load_hourly"
    wait_until(lambda: len(home.api("GET", "/dags")["dags"]) == 2, RUN_S, lambda: home.log("dag-processor"))
    home.api("PATCH", f"/dags/{event}", {"is_paused": False})
    # Airflow looks for an event DAG's trigger when it parses the DAG.
    home.api("PUT", f"/parseDagFile/{home.api('GET', f'/dags/{event}')['file_token']}")

    write(watched, [(0, hour_ms)])
    [command] = wait_until(lambda: loading(live), RUN_S, lambda: home.log("triggerer") + home.log("scheduler"))
    group = os.getpgid(command)
    os.kill(parent_of(command), signal.SIGKILL)
    wait_until(lambda: not group_members(group), RUN_S, lambda: "the killed task's command or its JVM is still there")

    [run] = wait_until(lambda: runs_of(home, event, "success"), RUN_S, lambda: home.log("scheduler"))
    tasks = home.api("GET", f"/dags/{event}/dagRuns/{run['dag_run_id']}/taskInstances")["task_instances"]
    assert {task["task_id"]: (task["state"], task["try_number"]) for task in tasks} == {
        "load": ("success", 2), "check": ("success", 1)
    }  # fmt: skip
    assert sorted((row["partition"], row["offset"]) for row in delta_rows(live)) == [
        (partition, offset) for partition in range(2) for offset in range(10)
    ]
    [happened] = [each for each in home.api("GET", "/assets/events")["asset_events"] if "payload" in each["extra"]]
    assert happened["extra"]["payload"] == {"topic": watched, "partition": 0, "offset": 0, "timestamp_ms": hour_ms}

    # Unpaused, the DAG also has a scheduled run of the last hour. It waits, in no slot, for late records.
    home.api("POST", "/backfills", {"dag_id": hourly, "from_date": text(hour_ms), "to_date": text(hour_ms)})
    home.api("PATCH", f"/dags/{hourly}", {"is_paused": False})

    def backfilled() -> bool:
        return any(run["run_type"] == "backfill" for run in runs_of(home, hourly, "success"))

    wait_until(backfilled, RUN_S, lambda: home.log("scheduler"))
    # A second one, if the hour has turned meanwhile.
    assert {run["run_type"] for run in runs_of(home, hourly, "running")} == {"scheduled"}
    home.close()
    wait_until(lambda: not processes_with(str(tmp_path)), RUN_S, lambda: "a command outlived Airflow")
    found = {}
    for topic in (flights, weather):
        [path] = (hours / topic / "_headwater" / "manifests").iterdir()
        manifest = json.loads(path.read_text())
        found[topic] = (manifest["from"], manifest["offsets"])
    assert found == {
        flights: (text(hour_ms), {"0": [[0, 5]], "1": [[0, 5]]}),
        weather: (text(hour_ms), {"0": [[0, 5]]}),
    }
