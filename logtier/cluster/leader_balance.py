"""Leaderships return to the preferred replicas of partitions, some time after their brokers have returned."""

import asyncio
import contextlib
import logging

from headwater.logtier.controller.controller import Controller
from headwater.logtier.metadata.store import MetadataStoreError
from headwater.logtier.protocol.errors import KafkaError

log = logging.getLogger(__name__)


class LeaderBalance:
    """Elects preferred leaders at an interval, while this broker is controller (`auto.leader.rebalance.enable`).

    Without it the brokers that return, as in a rolling restart, would lead nothing: the last one would.
    """

    def __init__(self, controller: Controller, interval_s: float) -> None:
        """`interval_s`: `leader.imbalance.check.interval.seconds`."""
        self._controller = controller
        self._interval_s = interval_s
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin the first interval."""
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Elect no more."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._interval_s)
            if not self._controller.is_active:
                continue
            try:
                await self._controller.elect_preferred_leaders()
            except (KafkaError, MetadataStoreError) as error:
                log.info("preferred leaders are not elected at present: %s", error)
