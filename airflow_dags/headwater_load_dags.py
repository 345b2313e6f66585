"""DAGs `headwater_load_NAME`: an interval of some topics a run, into files or Delta tables, each record once.

wait -> load -> check. A backfill (`airflow backfill create --dag-id headwater_load_NAME ...`) runs the same DAG for
intervals of the past.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.sdk import DAG, CronDataIntervalTimetable, chain, task
from airflow.sdk.exceptions import AirflowFailException
from headwater_checks import problems
from headwater_settings import Load, Settings, read_settings
from headwater_tasks import (
    HeadwaterOperator,
    ReadySensor,
    asset_of,
    failure_callbacks,
    load_arguments,
    pool_of,
    target_of,
    task_arguments,
)

START = "{{ data_interval_start.isoformat() }}"
END = "{{ data_interval_end.isoformat() }}"


def load_dag(load: Load, settings: Settings) -> DAG:
    """The DAG of one entry of `loads`."""
    assets = {topic: asset_of(load, topic) for topic in load.topics}
    partitions = [text for column in load.partition_by for text in ("--partition-by", column)]

    # No retries: it looks at what the load says, which stays the same.
    @task(task_id="check", outlets=list(assets.values()), retries=0)
    def check(outcomes: list[dict[str, Any]], *, dag_run: Any = None, data_interval_end: Any = None,
              outlet_events: Any = None) -> None:  # fmt: skip
        is_scheduled = dag_run.run_type == "scheduled"
        delay_s = (datetime.now(UTC) - data_interval_end).total_seconds() if is_scheduled else None
        if found := problems(outcomes, load.topics, load.check, delay_s):
            raise AirflowFailException("; ".join(found))
        for outcome in outcomes:
            topic = outcome["topic"]
            kept = ("id", "rows", "refused", "late", "offsets")
            outlet_events[assets[topic]].extra = {
                "topic": topic, "target": target_of(load, topic), **{k: outcome[k] for k in kept if k in outcome}
            }  # fmt: skip

    with DAG(
        f"headwater_load_{load.name}",
        description=f"Loads {', '.join(load.topics)[:200]} into {load.to}",
        # A plain cron string has empty intervals in Airflow 3.
        schedule=CronDataIntervalTimetable(load.schedule, timezone=load.timezone),
        start_date=load.start,
        catchup=load.catchup,
        # Runs that wait for their topics hold no slot: several may wait, as after an outage. They load one by one.
        max_active_runs=8,
        default_args={"on_failure_callback": failure_callbacks(settings)},
        tags=["headwater", "load"],
    ) as dag:
        wait = ReadySensor(
            task_id="wait",
            settings=settings,
            topics=load.topics,
            until=END,
            lateness_s=load.lateness_s,
            idle_s=load.idle_s,
            poke_interval=timedelta(seconds=load.poke_s),
            # From the first look on. Then the run fails, and says which partition holds it back.
            timeout=load.ready_within_s,
            retries=load.retries,
            retry_delay=timedelta(seconds=load.retry_delay_s),
        )
        loaded = HeadwaterOperator(
            task_id="load",
            settings=settings,
            arguments=[*load_arguments(load), *partitions, "--interval", f"{START}/{END}"],
            is_json=True,
            pool=pool_of(load),
            **task_arguments(load),
        )
        chain(wait, loaded, check(loaded.output))
    return dag


SETTINGS = read_settings()
for entry in SETTINGS.loads:
    load_dag(entry, SETTINGS)
