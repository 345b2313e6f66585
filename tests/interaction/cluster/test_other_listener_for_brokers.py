"""`inter.broker.listener.name` is changed in a rolling restart: brokers with the old and with the new one replicate."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from headwater.logtier.broker import Broker
from headwater.logtier.controller.commands import NewTopic
from headwater.logtier.metadata.image import MetadataImage
from tests.bench.processes import free_port
from tests.interaction.cluster.test_members import Cluster, until

IDS = (1, 2, 3)
JAAS = 'a.PlainLoginModule required username="broker" password="secret" user_broker="secret";'


def image_of(broker: Broker) -> MetadataImage:
    assert broker.parts is not None
    return broker.parts.metadata.image


def has_all_replicas(image: MetadataImage) -> bool:
    topic = image.topic("t")
    return topic is not None and all(set(each.isr) == set(IDS) and each.leader > 0 for each in topic.partitions)


def test_the_listener_for_brokers_is_changed_one_broker_after_the_other(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    ports = {broker_id: (free_port(), free_port()) for broker_id in IDS}

    def properties(broker_id: int, inside: str) -> dict[str, object]:
        plain, secured = ports[broker_id]
        return {
            "listeners": f"PLAIN://127.0.0.1:{plain},SECURED://127.0.0.1:{secured}",
            "listener.security.protocol.map": "PLAIN:PLAINTEXT,SECURED:SASL_PLAINTEXT",
            "listener.name.secured.sasl.enabled.mechanisms": "PLAIN",
            "listener.name.secured.plain.sasl.jaas.config": JAAS,
            "sasl.mechanism.inter.broker.protocol": "PLAIN",
            "inter.broker.listener.name": inside,
            "default.replication.factor": 3,
            "replica.lag.time.max.ms": 2_000,
        }

    async def scenario() -> None:
        cluster = Cluster(tmp_path)

        def is_whole() -> bool:
            images = [image_of(each) for each in cluster.brokers.values()]
            return all(set(each.brokers) == set(IDS) and has_all_replicas(each) for each in images)

        def is_controller(broker_id: int) -> bool:
            parts = cluster.brokers[broker_id].parts
            return parts is not None and parts.controller.is_active

        for broker_id in IDS:
            await cluster.start(broker_id, properties=properties(broker_id, "PLAIN"))
        try:
            parts = cluster.brokers[next(filter(is_controller, IDS))].parts
            assert parts is not None
            [created] = await parts.controller.create_topics([NewTopic("t", 6)])
            assert created.error is None
            # The controller last: it takes requests of brokers that have the other listener.
            for broker_id in sorted(IDS, key=is_controller):
                await until(is_whole)
                await cluster.brokers.pop(broker_id).stop()
                await until(lambda: all(len(image_of(each).brokers) == 2 for each in cluster.brokers.values()))
                await cluster.start(broker_id, properties=properties(broker_id, "SECURED"))
            await until(is_whole)
        finally:
            for broker in cluster.brokers.values():
                await broker.stop()

    asyncio.run(scenario())
    lines = [record.getMessage() for record in caplog.records]
    assert [line for line in lines if "is not supported by this broker" in line] == []
    assert [line for line in lines if "set the same inter.broker.listener.name on all brokers" in line]
