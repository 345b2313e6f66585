"""Brokers that no rule allows to replicate: a line for each leader, and replication as soon as a rule does."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from headwater.logtier.controller.commands import NewTopic
from headwater.logtier.security.acls import AclBinding, PatternType, PermissionType
from headwater.logtier.security.operations import AclOperation, ResourceType
from tests.interaction.cluster.test_members import Cluster, until

PROPERTIES = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "replica.fetch.backoff.ms": 50,
    "default.replication.factor": 3,
}
IDS = (1, 2, 3)
RULE = AclBinding(
    ResourceType.cluster,
    "kafka-cluster",
    PatternType.literal,
    "User:ANONYMOUS",
    "*",
    AclOperation.cluster_action,
    PermissionType.allow,
)


def test_brokers_without_a_right_to_replicate_say_so_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    def lines(what: str) -> list[str]:
        return [record.getMessage() for record in caplog.records if what in record.getMessage()]

    async def scenario() -> None:
        cluster = Cluster(tmp_path)
        for broker_id in IDS:
            await cluster.start(broker_id, properties=PROPERTIES)
        try:
            all_parts = [each.parts for each in cluster.brokers.values() if each.parts is not None]
            parts = next(each for each in all_parts if each.controller.is_active)
            [created] = await parts.controller.create_topics([NewTopic("t", 6)])
            assert created.error is None
            denials = "operation = CLUSTER_ACTION"
            await until(lambda: len(lines(denials)) > 10 * len(IDS))
            refused = lines("refuses fetches of this broker")
            assert sorted(line[:8] for line in refused) == [f"broker {each}" for each in IDS for _ in range(2)]
            assert all("add the principal of this broker to super.users" in line for line in refused)
            assert lines("t-0: broker") == []
            assert await parts.controller.create_acls([RULE]) == [None]
            await until(lambda: len(lines("serves fetches of this broker")) == 2 * len(IDS))
        finally:
            for broker in cluster.brokers.values():
                await broker.stop()

    asyncio.run(scenario())
