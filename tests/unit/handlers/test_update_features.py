"""UpdateFeatures on a node: levels change for all later answers, and what hangs on them changes with them."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

from headwater.logtier.handlers.cluster import api_versions, update_features
from headwater.logtier.handlers.groups import consumer_group_describe, consumer_group_heartbeat
from headwater.logtier.protocol.errors import ErrorCode
from tests.handler_client import Client, run

UPGRADE, SAFE_DOWNGRADE = 1, 2


async def update(client: Client, upgrade_type: int, *, validate_only: bool = False, **levels: int) -> Any:
    updates = [
        {"feature": name.replace("_", "."), "max_version_level": level, "upgrade_type": upgrade_type}
        for name, level in levels.items()
    ]
    return await client.send(
        update_features, 2, timeout=timedelta(seconds=1), feature_updates=updates, validate_only=validate_only
    )


async def finalized(client: Client) -> tuple[int, dict[str, int]]:
    answer: Any = await client.send(api_versions, 4, client_software_name="test", client_software_version="1")
    levels = {each.name: each.max_version_level for each in answer.finalized_features}
    return answer.finalized_features_epoch, levels


def test_levels_change_with_an_epoch_and_level_0_is_not_listed(tmp_path: Path) -> None:
    async def scenario(client: Client) -> None:
        epoch, levels = await finalized(client)
        assert (epoch, levels["transaction.version"], levels["group.version"]) == (0, 2, 1)
        assert not (await update(client, SAFE_DOWNGRADE, transaction_version=1, group_version=0)).error_code
        assert await finalized(client) == (
            1,
            {k: v for k, v in levels.items() if k != "group.version"} | {"transaction.version": 1},
        )
        assert not (await update(client, UPGRADE, transaction_version=2, group_version=1)).error_code
        assert await finalized(client) == (2, levels)

    run(tmp_path, scenario)


def test_a_validation_and_a_refused_update_change_nothing(tmp_path: Path) -> None:
    async def scenario(client: Client) -> None:
        before = await finalized(client)
        assert not (await update(client, SAFE_DOWNGRADE, validate_only=True, group_version=0)).error_code
        answer = await update(client, SAFE_DOWNGRADE, group_version=0, transaction_version=0)
        assert answer.error_code is ErrorCode.invalid_update_version
        assert answer.error_message.endswith("Broker 1 only supports versions 1-2")
        assert await finalized(client) == before

    run(tmp_path, scenario)


def test_the_consumer_protocol_is_served_at_level_1_of_its_feature_only(tmp_path: Path) -> None:
    async def ask(client: Client) -> tuple[int, int]:
        beat = {
            "group_id": "",  # the next check refuses it
            "member_id": "m",
            "member_epoch": 0,
            "instance_id": None,
            "rack_id": None,
            "rebalance_timeout": timedelta(seconds=1),
            "subscribed_topic_names": ("missing",),
            "subscribed_topic_regex": None,
            "server_assignor": None,
            "topic_partitions": (),
        }
        answer: Any = await client.send(consumer_group_heartbeat, 1, **beat)
        described: Any = await client.send(
            consumer_group_describe, 1, group_ids=("",), include_authorized_operations=False
        )
        return answer.error_code, described.groups[0].error_code

    async def scenario(client: Client) -> None:
        assert not (await update(client, SAFE_DOWNGRADE, group_version=0)).error_code
        assert await ask(client) == (ErrorCode.unsupported_version, ErrorCode.unsupported_version)
        assert not (await update(client, UPGRADE, group_version=1)).error_code
        assert ErrorCode.unsupported_version not in await ask(client)

    run(tmp_path, scenario)
