"""Feature levels and whole brokers: one that is too old is refused before it reads or writes, whenever it comes."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from pathlib import Path

import pytest

from headwater.cli.shell.stored_metadata import call_controller
from headwater.logtier import broker_cluster
from headwater.logtier.broker import BrokerStartError
from headwater.logtier.controller.commands import NewTopic
from headwater.logtier.controller.feature_state import SAFE_DOWNGRADE, FeatureUpdate
from headwater.logtier.controller.registration import BrokerRegistrar
from headwater.logtier.metadata import paths
from headwater.logtier.protocol.features import (
    SUPPORTED_FEATURES,
    FeatureRange,
    FinalizedFeatures,
    UnsupportedFeaturesError,
    stated_ranges,
)
from tests.interaction.cluster.test_members import Cluster

pytestmark = pytest.mark.slow

TRANSACTIONS = "transaction.version"
PATIENCE_S = 30


def earlier_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    """Brokers that start from now on know the first level of transactions alone."""
    earlier = {**SUPPORTED_FEATURES, TRANSACTIONS: FeatureRange(1, 1)}
    monkeypatch.setattr(broker_cluster, "stated_ranges", lambda _: stated_ranges(earlier))


def test_a_broker_that_registers_while_the_levels_are_raised_ends_its_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    register = BrokerRegistrar._try_to_register

    async def main() -> None:
        cluster = Cluster(tmp_path)
        for broker_id in (1, 2):
            await cluster.start(broker_id)
        await cluster.settled()
        await cluster.controller().update_features([FeatureUpdate(TRANSACTIONS, 1, SAFE_DOWNGRADE)])
        raised: list[int] = []

        async def raise_before(self: BrokerRegistrar, data: bytes) -> int | None:
            if self._broker_id == 3 and not raised:
                raised.append(2)
                await cluster.controller().update_features([FeatureUpdate(TRANSACTIONS, 2)])
            return await register(self, data)

        monkeypatch.setattr(BrokerRegistrar, "_try_to_register", raise_before)
        earlier_ranges(monkeypatch)
        async with asyncio.timeout(PATIENCE_S):
            with pytest.raises(BrokerStartError, match="cannot take part in the cluster"):
                await cluster.start(3)
        assert raised == [2]
        for broker_id in (1, 2):
            await cluster.stop(broker_id)

    asyncio.run(main())


def test_a_store_of_a_later_release_is_neither_read_nor_written(tmp_path: Path) -> None:
    """A level above this release's says that some node has another form, which no decoder here knows."""

    async def main() -> None:
        cluster = Cluster(tmp_path)
        broker = await cluster.start(1)
        await cluster.settled()
        await cluster.controller().create_topics([NewTopic("t", 1, 1)])
        config, machine = broker._config, broker._machine
        await cluster.stop(1)
        store = cluster.model.store("administrator", 1_500)
        await store.start()
        levels = {name: each.last for name, each in SUPPORTED_FEATURES.items() if each.last}
        later = FinalizedFeatures(1, {**levels, "metadata.version": 28})
        await store.set(paths.FEATURES, paths.encode_features(later))
        chunk = await store.get("/brokers/topics/t/0")
        await store.set("/brokers/topics/t/0", chunk.data.replace(b'"version":1', b'"version":2'))
        with pytest.raises(BrokerStartError, match=r"cannot take part in the cluster: .*metadata\.version"):
            await cluster.start(1)

        async def change(*_: object) -> None:
            raise AssertionError("a command changes the metadata of a later release")

        with pytest.raises(UnsupportedFeaturesError):
            await call_controller("user add", config, machine, change)
        await store.close()

    asyncio.run(main())


def test_a_broker_that_does_not_support_the_levels_is_no_controller(tmp_path: Path) -> None:
    async def main() -> None:
        cluster = Cluster(tmp_path)
        await cluster.start(1)
        await cluster.settled()
        controller = cluster.controller()
        image = controller._cache.image
        levels = {name: each.last for name, each in SUPPORTED_FEATURES.items() if each.last}
        later = FinalizedFeatures(9, {**levels, "metadata.version": 28})
        await controller.stop()
        assert not controller.is_active
        controller._cache._image = replace(image, features=later)
        assert not await controller.elect()
        assert not controller.is_active
        controller._cache._image = image
        # The broker tries as well, whenever nobody is controller: one of both is first.
        for _ in range(1_000):
            if await controller.elect() or controller.is_active:
                break
            await asyncio.sleep(0.01)
        else:
            raise AssertionError("nobody has become controller")
        await cluster.stop(1)

    asyncio.run(main())


def test_a_broker_that_later_levels_admit_is_admitted_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)

    async def main() -> None:
        cluster = Cluster(tmp_path)
        await cluster.start(1)
        await cluster.settled()
        await cluster.controller().update_features([FeatureUpdate("group.version", 0, SAFE_DOWNGRADE)])
        narrow = {**SUPPORTED_FEATURES, "group.version": FeatureRange(1, 1)}
        monkeypatch.setattr(broker_cluster, "stated_ranges", lambda _: stated_ranges(narrow))
        monkeypatch.setattr("headwater.logtier.controller.registration.check_stored_levels", accept)
        monkeypatch.setattr("headwater.logtier.cluster.membership.check_supported", lambda *_: None)
        starting = asyncio.ensure_future(cluster.start(2))
        async with asyncio.timeout(PATIENCE_S):
            while not any("broker 2 is not admitted" in each for each in caplog.messages):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert "start it with the release that the other brokers run" in caplog.text
        await cluster.controller().update_features([FeatureUpdate("group.version", 1)])
        async with asyncio.timeout(PATIENCE_S):
            await starting
        for broker_id in (1, 2):
            await cluster.stop(broker_id)

    async def accept(*_: object) -> None:
        """As an earlier release does, which knows of no levels."""

    asyncio.run(main())
