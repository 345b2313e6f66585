"""DAGs `headwater_maintain_NAME`: compares a load's targets with their loads and the log, then OPTIMIZE and VACUUM."""

from __future__ import annotations

from typing import Any

from airflow.sdk import DAG, CronTriggerTimetable, chain
from headwater_settings import Load, Settings, read_settings
from headwater_tasks import HeadwaterOperator, failure_callbacks, pool_of, target_of, task_arguments


def maintenance_dag(load: Load, settings: Settings) -> DAG:
    """The DAG of one entry of `loads` that has `maintenance`."""
    rules = load.maintenance
    assert rules is not None

    def command(task_id: str, arguments: dict[str, Any], *line: str) -> HeadwaterOperator:
        # In the target's pool, so that a load does not wait for OPTIMIZE in a worker's slot.
        return HeadwaterOperator(
            task_id=task_id,
            settings=settings,
            arguments=line,
            pool=pool_of(load),
            **(task_arguments(load) | arguments),
        )

    with DAG(
        f"headwater_maintain_{load.name}",
        description=f"Verifies and compacts {load.to}",
        schedule=CronTriggerTimetable(rules.schedule, timezone=load.timezone),
        start_date=load.start,
        # A night that was missed is not made up for: one run does the work of all.
        catchup=False,
        max_active_runs=1,
        default_args={"on_failure_callback": failure_callbacks(settings)},
        tags=["headwater", "maintenance"],
    ) as dag:
        targets = {topic: target_of(load, topic) for topic in load.topics}
        verify = [
            # No retry: what is wrong now is wrong in a minute. What is not verified is not rewritten either.
            command(f"verify_{topic}", {"retries": 0}, "load", "--verify", target)
            for topic, target in targets.items()
            if rules.verify
        ]
        # One start of Spark for all tables.
        optimize = "; ".join(f"OPTIMIZE delta.`{target}`" for target in targets.values())
        vacuum = "; ".join(f"VACUUM delta.`{target}` RETAIN {rules.vacuum_hours} HOURS" for target in targets.values())
        steps: list[Any] = [verify] if verify else []
        steps += [command("optimize", {}, "sql", "-e", optimize)] if rules.optimize else []
        steps += [command("vacuum", {}, "sql", "-e", vacuum)] if rules.vacuum_hours is not None else []
        chain(*steps)
    return dag


SETTINGS = read_settings()
for entry in SETTINGS.loads:
    if entry.maintenance is not None:
        maintenance_dag(entry, SETTINGS)
