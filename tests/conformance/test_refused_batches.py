"""librdkafka's producer at a broker that refuses a batch and could take the next one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from headwater.logtier.records.batch import HEADER_BYTES, LOG_OVERHEAD, RecordBatchHeader
from tests.conformance.refusing_broker import REFUSED, REFUSED_SEQUENCES
from tests.conftest import BrokerProcess

PARTITIONS = 4
MESSAGES = 20
LIMIT_S = 60
KNOWN = b"the log has records"


def test_all_that_is_acknowledged_is_there_once_in_order_and_in_the_first_epoch(tmp_path: Path) -> None:
    """A log with records that does not know the producer would take the second batch, and librdkafka counts the first
    one as acknowledged with it. A log that knows it finds the next one out of order, and librdkafka begins an epoch.
    """
    broker = BrokerProcess(tmp_path / "data", 0, {}, module="tests.conformance.refusing_broker")
    try:
        broker.await_ready()
        admin = AdminClient({"bootstrap.servers": broker.address})
        admin.create_topics([NewTopic("flights", PARTITIONS, 1)])["flights"].result(LIMIT_S)
        plain = Producer({"bootstrap.servers": broker.address})
        for partition in range(PARTITIONS):
            plain.produce("flights", KNOWN, partition=partition)
        assert plain.flush(LIMIT_S) == 0

        acknowledged, refused = produced(broker.address)
        assert refused == []
        assert broker.log().count(REFUSED) == len(REFUSED_SEQUENCES) * PARTITIONS
        assert acknowledged == {partition: list(range(MESSAGES)) for partition in range(PARTITIONS)}
        assert stored(broker.address) == acknowledged
        assert epochs(tmp_path / "data") == {0}
        broker.stop()
    finally:
        broker.close()


def produced(bootstrap_servers: str) -> tuple[dict[int, list[int]], list[str]]:
    """Send numbers to each partition, each in a batch of its own, several in flight; what is acknowledged, and not."""
    acknowledged: dict[int, list[int]] = {partition: [] for partition in range(PARTITIONS)}
    refused: list[str] = []
    producer = Producer(
        {
            "bootstrap.servers": bootstrap_servers,
            "enable.idempotence": True,
            "linger.ms": 0,
            "batch.num.messages": 1,
        }
    )

    def note(partition: int, number: int) -> Callable[[KafkaError | None, Message], None]:
        def delivered(error: KafkaError | None, _: Message) -> None:
            if error is None:
                acknowledged[partition].append(number)
            else:
                refused.append(str(error))

        return delivered

    for number in range(MESSAGES):
        for partition in range(PARTITIONS):
            value = str(number).encode()
            producer.produce("flights", value, partition=partition, on_delivery=note(partition, number))
    assert producer.flush(LIMIT_S) == 0
    return acknowledged, refused


def stored(bootstrap_servers: str) -> dict[int, list[int]]:
    """The numbers of each partition, in the order of the log."""
    consumer = Consumer({"bootstrap.servers": bootstrap_servers, "group.id": "reader", "enable.auto.commit": False})
    found: dict[int, list[int]] = {partition: [] for partition in range(PARTITIONS)}
    try:
        assigned = [TopicPartition("flights", partition, 0) for partition in range(PARTITIONS)]
        left = Counter({each.partition: consumer.get_watermark_offsets(each, LIMIT_S)[1] for each in assigned})
        consumer.assign(assigned)
        while left.total():
            messages = consumer.consume(left.total(), LIMIT_S)
            assert messages, f"{left} messages did not come"
            for message in messages:
                partition, value = message.partition(), message.value()
                assert partition is not None and value is not None
                left[partition] -= 1
                if value != KNOWN:
                    found[partition].append(int(value))
    finally:
        consumer.close()
    return found


def epochs(data: Path) -> set[int]:
    """The producer epochs of all batches of idempotent producers."""
    found = set()
    for path in data.glob("flights-*/*.log"):
        log, position = path.read_bytes(), 0
        while position + HEADER_BYTES <= len(log):
            header = RecordBatchHeader.parse(log[position : position + HEADER_BYTES])
            if header.producer_id >= 0:
                found.add(header.producer_epoch)
            position += LOG_OVERHEAD + header.batch_length
    return found
