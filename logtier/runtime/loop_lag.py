"""Event loop lag: the delay of due work, which affects every client."""

import asyncio

from headwater.logtier.runtime.metrics import BrokerMetrics

INTERVAL_S = 0.25


async def measure_loop_lag(metrics: BrokerMetrics) -> None:
    """Record the delay of a periodic timer until cancelled."""
    loop = asyncio.get_running_loop()
    while True:
        due_s = loop.time() + INTERVAL_S
        await asyncio.sleep(INTERVAL_S)
        metrics.loop_lag.observe(max(0.0, loop.time() - due_s))
