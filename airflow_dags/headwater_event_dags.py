"""DAGs `headwater_event_NAME`: loads a topic's new records when records come to a topic.

Airflow's trigger consumes the watched topic in a group of its own, and commits before anything is loaded. An event is
therefore a hint: the run takes its work from the offsets, from where the last load ended up to the topic's end. What a
lost event announced is loaded by the next run; a run of an event that came twice finds nothing new.
"""

from __future__ import annotations

from typing import Any

from airflow.providers.apache.kafka.triggers.msg_queue import KafkaMessageQueueTrigger
from airflow.sdk import DAG, Asset, AssetWatcher, task
from airflow.sdk.exceptions import AirflowFailException
from headwater_checks import problems
from headwater_settings import Check, Event, Settings, read_settings
from headwater_tasks import HeadwaterOperator, asset_of, failure_callbacks, load_arguments, pool_of, task_arguments

#: Of file systems: a load's name has no colon, and at most 150 characters.
RUN = "{{ run_id | replace(':', '') | truncate(140, True, '', 0) }}"


def event_dag(event: Event, settings: Settings) -> DAG:
    """The DAG of one entry of `events`."""
    trigger = KafkaMessageQueueTrigger(
        topics=[event.watch],
        kafka_config_id=event.connection,
        # In plugins/: the triggerer has that folder on its path, not the DAGs'.
        apply_function="headwater_hints.hint",
        apply_function_kwargs={"header": event.header},
        poll_interval=event.poll_s,
    )
    hint = Asset(
        name=f"headwater/events/{event.name}",
        group="headwater",
        watchers=[AssetWatcher(name=f"headwater_{event.name}", trigger=trigger)],
    )

    @task(task_id="check", outlets=[asset_of(event, topic) for topic in event.topics], retries=0)
    def check(outcomes: list[dict[str, Any]]) -> None:
        if found := problems(outcomes, event.topics, Check()):
            raise AirflowFailException("; ".join(found))

    with DAG(
        f"headwater_event_{event.name}",
        description=f"Loads {', '.join(event.topics)[:200]} when records come to {event.watch}",
        schedule=[hint],
        catchup=False,
        # Events that come during a run make one further run, which loads all that they announced.
        max_active_runs=1,
        default_args={"on_failure_callback": failure_callbacks(settings)},
        tags=["headwater", "event"],
    ) as dag:
        loaded = HeadwaterOperator(
            task_id="load",
            settings=settings,
            arguments=[*load_arguments(event), "--from", "last", "--until", "latest", "--missing", "--id", RUN],
            is_json=True,
            pool=pool_of(event),
            **task_arguments(event),
        )
        check(loaded.output)
    return dag


SETTINGS = read_settings()
for entry in SETTINGS.events:
    event_dag(entry, SETTINGS)
