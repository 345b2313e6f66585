"""Runs in Airflow's environment: imports the DAGs, describes them, and runs some of them by `dag.test()`.

Reads instructions as JSON from standard input, and writes what it saw to the file that they name. One process for all
runs: starting Airflow takes longer than most of them.
"""

from __future__ import annotations

import json
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

from airflow.dag_processing.dagbag import BundleDagBag


def described(dag: Any) -> dict[str, Any]:
    """A DAG's structure, as far as it matters that it stays."""
    return {
        "timetable": type(dag.timetable).__name__,
        "catchup": dag.catchup,
        "max_active_runs": dag.max_active_runs,
        "tasks": {
            task.task_id: {
                "kind": type(task).__name__,
                "after": sorted(task.upstream_task_ids),
                "pool": task.pool,
                "retries": task.retries,
                "time_limit_s": task.execution_timeout and task.execution_timeout.total_seconds(),
                "outlets": sorted(outlet.name for outlet in task.outlets),
                "mode": getattr(task, "mode", None),
                "arguments": getattr(task, "arguments", None),
            }
            for task in dag.tasks
        },
    }


def ran(dag: Any, logical_date: str) -> dict[str, Any]:
    """One run of a DAG, which takes its interval from the date."""
    run = dag.test(logical_date=datetime.fromisoformat(logical_date))
    instances = {instance.task_id: instance for instance in run.get_task_instances()}
    return {
        "dag": dag.dag_id,
        "state": str(run.state),
        "interval": [run.data_interval_start.isoformat(), run.data_interval_end.isoformat()],
        "tasks": {name: str(instance.state) for name, instance in instances.items()},
    }


def main() -> None:
    wanted = json.load(sys.stdin)
    bag = BundleDagBag(wanted["folder"], bundle_path=Path(wanted["folder"]), bundle_name="dags-folder")
    found = {
        "errors": dict(bag.import_errors),
        "warnings": [str(each) for each in bag.captured_warnings.values()],
        "dags": {name: described(dag) for name, dag in bag.dags.items()},
        "runs": [ran(bag.dags[name], date) for name, date in wanted["runs"]],
    }
    with open(wanted["result"], "w", encoding="utf-8") as file:
        json.dump(found, file, default=str)


if __name__ == "__main__":
    main()
