"""A broker that is unregistered: its replicas stay assigned, and it may return."""

from __future__ import annotations

from asyncio import to_thread
from pathlib import Path

import pytest

from headwater.logtier.metadata import paths
from headwater.logtier.protocol.errors import ErrorCode, KafkaError
from tests.interaction.cluster.test_closest_replica import produce
from tests.interaction.cluster.test_damaged_nodes import create_flights
from tests.interaction.cluster.test_members import Cluster, run, until

RECORDS = 20


def test_a_broker_that_was_unregistered_is_unknown_until_it_returns_as_one_without_its_records(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        controller_id = await cluster.settled()
        away = next(each for each in cluster.brokers if each != controller_id)
        controller = cluster.controller()
        await create_flights(cluster)
        with pytest.raises(KafkaError) as caught:
            await controller.unregister_broker(away)
        assert caught.value.code is ErrorCode.invalid_request
        await cluster.stop(away)
        await cluster.settled()
        await controller.unregister_broker(away)
        await until(lambda: all(away not in cluster.image(each).registrations for each in cluster.brokers))
        assert not cluster.model.has(paths.known_broker_path(away))
        partition = cluster.image(controller_id).topics["flights"].partitions[0]
        assert set(partition.replicas) == {1, 2, 3}
        assert away not in partition.isr
        await to_thread(produce, cluster.brokers[controller_id].bootstrap_address, RECORDS)
        # A broker that starts reads no node of it; the controller and its replica are there again when it returns.
        await cluster.start(4)
        await cluster.settled()
        assert away not in cluster.image(4).registrations
        await cluster.start(away)
        await cluster.settled()
        await until(lambda: set(cluster.image(4).topics["flights"].partitions[0].isr) == {1, 2, 3})

    run(tmp_path, scenario)
