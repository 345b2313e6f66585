"""A broker in the test's own process, so that the test can change what it is made of."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping

from headwater.logtier.broker import Broker
from headwater.logtier.config import BrokerConfig
from headwater.logtier.machine import Machine
from headwater.logtier.runtime.clock import Clock, SystemClock
from headwater.logtier.runtime.disk import Disk, RealDisk


def run_broker(
    properties: Mapping[str, object], use: Callable[[str], None], clock: Clock | None = None, disk: Disk | None = None
) -> None:
    """Start a broker on a free port, have it used, from another thread, by its address, and stop it."""

    async def main() -> None:
        config = BrokerConfig.from_properties({"listeners": "PLAINTEXT://127.0.0.1:0", **properties})
        machine = Machine(clock=clock or SystemClock(), prng=random.Random(1), disk=disk or RealDisk())
        broker = Broker(config, machine)
        await broker.start()
        try:
            await asyncio.to_thread(use, broker.bootstrap_address)
        finally:
            await broker.stop()

    asyncio.run(main())
