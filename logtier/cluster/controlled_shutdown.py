"""A controlled shutdown: the controller moves this broker's leaderships away before it stops (KIP-631)."""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from headwater.logtier.client.errors import ClientError, error_name
from headwater.logtier.peers.controller_channel import NOT_CONTROLLER, STALE_BROKER_EPOCH, ControllerChannel
from headwater.logtier.peers.controller_requests import broker_heartbeat_request
from headwater.logtier.runtime.clock import Clock

log = logging.getLogger(__name__)

TIMEOUT_MS: Final = 15_000
"""Time limit, that of controlled.shutdown.max.retries (3) and controlled.shutdown.retry.backoff.ms (5 s) in Kafka."""

RETRY_S: Final = 0.2
"""Delay before the controller is asked again: followers that could lead may be about to catch up."""


async def shut_down_in_control(
    broker_id: int,
    channel: ControllerChannel,
    clock: Clock,
    broker_epoch: Callable[[], int],
    metadata_offset: Callable[[], int],
) -> bool:
    """Return when other brokers lead this broker's partitions, as far as any can, or after the time limit.

    To be called while the broker serves its clients and the other brokers, with a channel that has a free turn.

    Args:
        broker_epoch: Returns the epoch of this broker's registration.
        metadata_offset: Returns the number of the next change that this broker applies.

    Returns:
        Whether the controller let this broker stop. If not, its partitions wait until the controller notes its absence.
    """
    deadline_ms = clock.monotonic_ms() + TIMEOUT_MS
    while (left_ms := deadline_ms - clock.monotonic_ms()) > 0:
        try:
            answer = await channel.call(
                lambda: broker_heartbeat_request(broker_id, broker_epoch(), metadata_offset(), want_shut_down=True),
                lambda answer: answer.error_code,
                timeout_ms=left_ms,
                retriable=(NOT_CONTROLLER, STALE_BROKER_EPOCH),
            )
        except ClientError as error:
            log.warning("broker %d stops although it leads partitions: %s", broker_id, error)
            return False
        if answer.error_code:
            log.warning("broker %d stops although it leads partitions: %s", broker_id, error_name(answer.error_code))
            return False
        if answer.should_shut_down:
            log.info("other brokers lead the partitions of broker %d now", broker_id)
            return True
        await asyncio.sleep(RETRY_S)
    log.warning("broker %d stops although it leads partitions: no other replica has caught up", broker_id)
    return False
