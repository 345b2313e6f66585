"""log4j2's own Kafka appender, configured as in conf/log4j2.properties, writes to our topics."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

from tests.conformance.java.conftest import run_java
from tests.jars import SPARK_JARS

if TYPE_CHECKING:
    from tests.conftest import TopicFactory

pytestmark = pytest.mark.slow

WAIT_S = 30
CONFIGURATION = Path(__file__).resolve().parents[3] / "conf" / "log4j2.properties"


def test_log_lines_of_a_java_program_arrive(bootstrap_servers: str, new_topic: TopicFactory, kafka_jars: Path) -> None:
    topic = new_topic(1)
    [client] = kafka_jars.glob("kafka-clients-*.jar")
    # Any program of Spark's jars that logs: this one cannot find its configuration file.
    output = run_java(
        [str(client), str(SPARK_JARS / "*")],
        "org.apache.zookeeper.server.quorum.QuorumPeerMain",
        ["there-is-no-such.cfg"],
        options=[
            f"-Dlog4j2.configurationFile={CONFIGURATION}",
            f"-Dheadwater.bootstrap.servers={bootstrap_servers}",
            f"-Dheadwater.log.topic={topic}",
            "-Dheadwater.log.sync=true",
        ],
        ends=2,
    )
    consumer = Consumer({"bootstrap.servers": bootstrap_servers, "group.id": f"{topic}-reader"})
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    lines: list[str] = []
    deadline = time.monotonic() + WAIT_S
    while not any("there-is-no-such.cfg" in line for line in lines):
        assert time.monotonic() < deadline, f"{lines}\n{output}"
        for message in consumer.consume(100, 0.2):
            assert not message.error()
            value: Any = message.value()
            lines.append(value.decode())
    consumer.close()
    assert any(" ERROR org.apache.zookeeper" in line for line in lines), lines
    assert not any("org.apache.kafka" in line for line in lines)
