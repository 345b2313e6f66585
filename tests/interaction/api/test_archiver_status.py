"""The status of archives in their topic on a broker, which the API of pipelines reads as well."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import Consumer

from headwater.api.pipeline_status import PipelineStatus
from headwater.api.topic_admin import TopicAdmin
from headwater.pipelines.archive.metrics import TopicCounts
from headwater.pipelines.archive.status_record import ArchiverStatus, decode_archiver_status
from headwater.pipelines.archive.status_topic import ArchiverStatusTopic
from headwater.pipelines.datasource.options import WriteOptions
from headwater.pipelines.monitoring.status import STATUS_TOPIC
from tests.conftest import StartBroker
from tests.waiting import until

pytestmark = pytest.mark.slow


def test_a_driver_writes_the_status_of_its_own_archives(start_broker: StartBroker, tmp_path: Path) -> None:
    broker = start_broker(tmp_path / "data")
    own, other = TopicCounts("flights", "/lake/flights"), TopicCounts("orders", "/lake/orders")
    topic = ArchiverStatusTopic(
        WriteOptions.parse({"kafka.bootstrap.servers": broker.address}).client, lambda: [own, other]
    )
    own.ended_well(5.0)
    other.failed("held by another", 5.0, is_own=False)
    topic.start()
    pipelines = PipelineStatus(TopicAdmin(broker.address))
    seen: list[ArchiverStatus] = []
    consumer = Consumer(
        {"bootstrap.servers": broker.address, "group.id": "reader", "auto.offset.reset": "earliest",
         "enable.auto.commit": False, "topic.metadata.refresh.interval.ms": 500}
    )  # fmt: skip
    consumer.subscribe([STATUS_TOPIC])

    def sees(state: str) -> bool:
        message = consumer.poll(0.2)
        if message is not None and message.error() is None:
            assert message.key() == b"archive:flights"
            seen.append(decode_archiver_status(message.value() or b""))
        return bool(seen) and seen[-1].state == state

    try:
        until(lambda: sees("running"))
        own.failed("no broker", 6.0, is_own=True)
        until(lambda: sees("failing"))
        assert (seen[-1].error, seen[-1].since_ms, seen[-1].failures) == ("no broker", 6000, 1)
        topic.end()
        until(lambda: sees("stopped"))
        assert pipelines.stages() == {}, "no stage of a pipeline"
    finally:
        topic.end()
        consumer.close()
        pipelines.close()
