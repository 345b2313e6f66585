"""DAGs `headwater_publish_NAME`: make a result and publish it to a topic, each row once.

make -> history -> pin -> publish -> published. `pin` writes down which version of a table is published: a retry and a
cleared `publish` take the same one, whatever was committed since, and `headwater publish` knows what it has published.
"""

from __future__ import annotations

from typing import Any

from airflow.sdk import DAG, Asset, CronTriggerTimetable, chain, task
from airflow.sdk.exceptions import AirflowFailException
from headwater_settings import Publish, Settings, read_settings
from headwater_tasks import HeadwaterOperator, asset_of, failure_callbacks, task_arguments

PINNED = ["{{ ti.xcom_pull(task_ids='pin')['from'] }}", "{{ ti.xcom_pull(task_ids='pin')['to'] }}"]


def publish_dag(entry: Publish, settings: Settings) -> DAG:
    """The DAG of one entry of `publish`."""
    arguments = ["publish", entry.path, "--topic", entry.topic, *(t for key in entry.key for t in ("--key", key))]
    arguments += ["--format", entry.format] if entry.format is not None else []
    arguments += [] if entry.what == "files" else PINNED
    schedule: Any = (
        CronTriggerTimetable(entry.schedule, timezone="UTC")
        if entry.schedule is not None
        else [asset_of(load, topic) for load in settings.loads if load.name in entry.after for topic in load.topics]
    )
    # What was published last is known from the events of this asset: runs that loads start have no date of their own.
    result = Asset(name=f"headwater/publish/{entry.name}", group="headwater")

    @task(task_id="pin", inlets=[result])
    def pin(history: list[dict[str, Any]], *, inlet_events: Any = None) -> dict[str, Any]:
        """The version to publish, as options. The first run of `changes` has none before it: it takes the whole one."""
        if not history:
            raise AirflowFailException(f"{entry.path} has no version yet")
        version = int(history[0]["version"])
        earlier = [event.extra["version"] for event in inlet_events[result] if "version" in (event.extra or {})]
        if entry.what == "version" or not earlier:
            return {"version": version, "from": f"--version={version}", "to": ""}
        return {"version": version, "from": f"--from-version={earlier[-1]}", "to": f"--to-version={version}"}

    @task(task_id="published", outlets=[result])
    def published(pinned: dict[str, Any], *, outlet_events: Any = None) -> None:
        """Say which version was published: the next run publishes the changes since then."""
        outlet_events[result].extra = {"version": pinned["version"]}

    with DAG(
        f"headwater_publish_{entry.name}",
        description=f"Publishes {entry.path} to {entry.topic}",
        schedule=schedule,
        start_date=entry.start,
        catchup=False,
        # One after the other: changes of a later version do not come before those of an earlier one.
        max_active_runs=1,
        default_args={"on_failure_callback": failure_callbacks(settings)},
        tags=["headwater", "publish"],
    ) as dag:

        def command(task_id: str, *line: str, **more: Any) -> HeadwaterOperator:
            return HeadwaterOperator(
                task_id=task_id, settings=settings, arguments=line, **more, **task_arguments(entry)
            )

        make = [command("make", "sql", "-e", entry.sql)] if entry.sql is not None else []
        publish = command("publish", *arguments, *entry.options, "-o", "json", is_json=True)
        if entry.what == "files":
            chain(*make, publish)
        else:
            asked = f"DESCRIBE HISTORY delta.`{entry.path}` LIMIT 1"
            history = command("history", "sql", "-e", asked, "-o", "json", is_json=True)
            pinned = pin(history.output)
            chain(*make, history, pinned, publish, published(pinned))
    return dag


SETTINGS = read_settings()
for each in SETTINGS.publish:
    publish_dag(each, SETTINGS)
