"""What Prometheus reads from a live broker, in its own parser."""

import re
import socket
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from prometheus_client.parser import text_string_to_metric_families

from tests.conftest import BrokerProcess, StartBroker
from tests.waiting import until

pytestmark = pytest.mark.slow

METRICS = re.compile(r"metrics (http://\S+/metrics)")
Samples = dict[tuple[str, ...], float]


@pytest.fixture
def broker(start_broker: StartBroker, tmp_path: Path) -> BrokerProcess:
    return start_broker(tmp_path / "data", properties={"prometheus.port": "0"})


def read(broker: BrokerProcess) -> Samples:
    """Samples by name and labels' values, in the order of the labels' names."""
    found = METRICS.search(broker.log())
    assert found, broker.log()
    with urllib.request.urlopen(found[1], timeout=30) as answer:
        text = answer.read().decode()
    return {
        (sample.name, *(sample.labels[label] for label in sorted(sample.labels))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def produce(broker: BrokerProcess, topic: str, count: int) -> None:
    producer = Producer({"bootstrap.servers": broker.address})
    for number in range(count):
        producer.produce(topic, b"x" * 100, key=str(number))
    assert producer.flush(30) == 0


def test_what_a_group_holds_back_and_what_was_given_up_is_told(start_broker: StartBroker, tmp_path: Path) -> None:
    properties = {"prometheus.port": "0", "log.retention.check.interval.ms": "100"}
    broker = start_broker(tmp_path / "data", properties=properties)
    admin = AdminClient({"bootstrap.servers": broker.address})
    configs = {
        "segment.bytes": "20000",
        "retention.ms": "1",
        "retention.hold.groups": "absent",
        "retention.hold.max.bytes": "60000",
    }
    admin.create_topics([NewTopic("held", 1, 1, config=configs)])["held"].result(30)
    for _ in range(20):
        produce(broker, "held", 50)
    until(lambda: read(broker).get(("headwater_retention_hold_given_up_bytes_total", "0", "held"), 0) > 0)
    samples = read(broker)
    assert 0 < samples["headwater_retention_held_bytes", "0", "held"] <= 60_000
    assert samples["headwater_retention_hold_max_bytes", "0", "held"] == 60_000


def test_traffic_offsets_and_lag_are_told_under_the_names_that_dashboards_know(broker: BrokerProcess) -> None:
    admin = AdminClient({"bootstrap.servers": broker.address})
    admin.create_topics([NewTopic("traffic", 2, 1)])["traffic"].result(30)
    produce(broker, "traffic", 1000)
    consumer = Consumer({"bootstrap.servers": broker.address, "group.id": "readers", "auto.offset.reset": "earliest"})
    consumer.subscribe(["traffic"])
    count = 0
    while count < 600:
        count += len(consumer.consume(600 - count, 10))
    consumer.commit(asynchronous=False)
    transactional = Producer({"bootstrap.servers": broker.address, "transactional.id": "counted"})
    transactional.init_transactions(30)
    samples = read(broker)
    consumer.close()

    assert samples["headwater_topic_messages_in_total", "traffic"] == 1000
    assert samples["headwater_topic_bytes_in_total", "traffic"] > 100_000
    assert samples["headwater_topic_bytes_out_total", "traffic"] > 60_000
    ends = [samples["kafka_topic_partition_current_offset", str(index), "traffic"] for index in (0, 1)]
    assert sum(ends) == 1000
    assert samples["kafka_topic_partition_oldest_offset", "0", "traffic"] == 0
    assert samples["kafka_topic_partitions", "traffic"] == 2
    assert samples["kafka_consumergroup_current_offset_sum", "readers", "traffic"] == 600
    assert samples["kafka_consumergroup_lag_sum", "readers", "traffic"] == 400
    assert samples["kafka_consumergroup_members", "readers"] == 1
    assert samples["headwater_log_size_bytes", "0", "traffic"] > 0
    assert samples["headwater_log_segments", "0", "traffic"] == 1
    assert samples["headwater_groups", "classic", "Stable"] == 1
    assert samples["headwater_transactions", "Empty"] == 1
    assert samples["headwater_connections", "PLAINTEXT"] >= 1
    assert samples["headwater_request_seconds_count", "Produce"] >= 1
    assert samples["headwater_request_errors_total", "Produce", "NONE"] >= 1
    assert samples["headwater_event_loop_lag_seconds_count",] >= 1
    # A single node: its own controller, with every partition led and in sync.
    assert samples["headwater_active_controller_count",] == 1
    assert samples["headwater_broker_epoch",] >= 1
    assert samples["headwater_leader_count",] == samples["headwater_at_min_isr_partitions",] >= 2
    assert samples["headwater_under_replicated_partitions",] == samples["headwater_leaderless_partitions",] == 0
    assert samples["headwater_product_topics_with_few_replicas",] == 0
    assert samples["headwater_process_id",] == broker.process.pid
    assert not any(name == "headwater_metadata_session" for name, *_ in samples)
    assert samples["process_resident_memory_bytes",] > 1 << 20


def test_refused_requests_are_counted_by_their_error(broker: BrokerProcess) -> None:
    admin = AdminClient({"bootstrap.servers": broker.address})
    topic = NewTopic("strict", 1, 1, config={"max.message.bytes": "200"})
    admin.create_topics([topic])["strict"].result(30)
    produce(broker, "strict", 1)
    producer = Producer({"bootstrap.servers": broker.address})
    producer.produce("strict", b"x" * 1000)
    producer.flush(30)
    samples = read(broker)
    assert samples["headwater_request_errors_total", "Produce", "MESSAGE_TOO_LARGE"] >= 1
    assert samples["headwater_topic_failed_produces_total", "strict"] >= 1


def test_the_traffic_of_a_deleted_topic_is_forgotten(broker: BrokerProcess) -> None:
    admin = AdminClient({"bootstrap.servers": broker.address})
    admin.create_topics([NewTopic("brief", 1, 1)])["brief"].result(30)
    produce(broker, "brief", 1)
    assert ("headwater_topic_messages_in_total", "brief") in read(broker)
    admin.delete_topics(["brief"])["brief"].result(30)
    assert not any("brief" in key for key in read(broker))


def test_other_paths_and_methods_of_the_endpoint_do_no_harm(broker: BrokerProcess) -> None:
    found = METRICS.search(broker.log())
    assert found
    request = urllib.request.Request(found[1], data=b"x", method="POST")
    with pytest.raises(urllib.error.HTTPError):
        urllib.request.urlopen(request, timeout=30)
    assert ("kafka_brokers",) in read(broker)


def test_a_port_in_use_is_said_in_one_line(start_broker: StartBroker, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        properties = {"prometheus.port": str(taken.getsockname()[1])}
        broker = start_broker(tmp_path / "data", properties=properties, await_ready=False)
        assert broker.process.wait(60) == 1
    [line] = [line for line in broker.log().splitlines() if line.startswith("headwater: ")]
    assert "cannot serve metrics at 127.0.0.1" in line
    assert "prometheus.port" in line
