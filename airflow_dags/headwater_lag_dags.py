"""DAGs `headwater_lag_NAME`: fail when a consumer group lags behind its topics. Asks the brokers; starts no command."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow.sdk import DAG, CronTriggerTimetable, task
from airflow.sdk.exceptions import AirflowFailException
from headwater_settings import Lag, Settings, read_settings
from headwater_tasks import failure_callbacks

REQUEST_S = 30


def partition_lags(admin: Any, group: str, topics: list[str]) -> dict[str, int]:
    """Records that the group has not committed, by `topic-partition`; of the named topics, or of all that it reads."""
    from confluent_kafka import ConsumerGroupTopicPartitions
    from confluent_kafka.admin import OffsetSpec

    [committed] = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)]).values()
    partitions = [each for each in committed.result(REQUEST_S).topic_partitions if each.offset >= 0]
    partitions = [each for each in partitions if not topics or each.topic in topics]
    missing = sorted(set(topics) - {each.topic for each in partitions})
    if missing or not partitions:
        raise AirflowFailException(f"group {group} has committed no offset of {', '.join(missing) or 'any topic'}")
    latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
    ends = admin.list_offsets(dict.fromkeys(partitions, latest))
    return {
        f"{each.topic}-{each.partition}": max(ends[each].result(REQUEST_S).offset - each.offset, 0)
        for each in partitions
    }


def lag_dag(lag: Lag, settings: Settings) -> DAG:
    """The DAG of one entry of `lag`."""

    # A broker that restarts is no lag: one retry.
    @task(task_id="lag", retries=1, retry_delay=timedelta(seconds=30), execution_timeout=timedelta(minutes=5))
    def check() -> dict[str, int]:
        from airflow.providers.apache.kafka.hooks.client import KafkaAdminClientHook

        lags = partition_lags(KafkaAdminClientHook(kafka_config_id=lag.connection).get_conn, lag.group, lag.topics)
        beyond = {name: records for name, records in sorted(lags.items()) if records > lag.lag_max}
        if beyond:
            named = ", ".join(f"{name} {records:,}" for name, records in list(beyond.items())[:10])
            raise AirflowFailException(f"group {lag.group} lags by more than {lag.lag_max:,} records: {named}")
        return lags

    with DAG(
        f"headwater_lag_{lag.name}",
        description=f"Fails when group {lag.group} lags by more than {lag.lag_max} records",
        schedule=CronTriggerTimetable(lag.schedule, timezone="UTC"),
        catchup=False,
        # A look that is late says nothing that the next one does not.
        max_active_runs=1,
        default_args={"on_failure_callback": failure_callbacks(settings)},
        tags=["headwater", "lag"],
    ) as dag:
        check()
    return dag


SETTINGS = read_settings()
for entry in SETTINGS.lag:
    lag_dag(entry, SETTINGS)
