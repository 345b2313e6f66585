"""What the controller does when brokers have come and gone. Pure."""

import logging
from collections.abc import Callable, Iterator, Mapping
from functools import partial

from headwater.logtier.controller.elections import (
    AllowsUnclean,
    MinIsr,
    plan_departure,
    plan_hand_overs,
    plan_registration,
    plan_unclean_elections,
)
from headwater.logtier.controller.live_brokers import LiveBrokers
from headwater.logtier.controller.reassignments import plan_completions
from headwater.logtier.metadata.image import BrokerRegistration, MetadataImage
from headwater.logtier.metadata.store import Operation

log = logging.getLogger(__name__)


def plan_turnover(
    image: Callable[[], MetadataImage],
    registered: Mapping[int, BrokerRegistration],
    shutting_down: dict[int, int],
    min_isr: MinIsr,
    allows_unclean: AllowsUnclean,
) -> Iterator[list[Operation]]:
    """Yield the operations that bring brokers and leaders in line with the registrations.

    Each list is executed before the next one is asked for, and may take effect one by one.

    Args:
        image: Returns the newest image, which has what was yielded before.
        shutting_down: Broker epochs by the ids of brokers that want to shut down; those that are gone are removed.
    """
    for broker_id, known in image().registrations.items():
        if known.is_alive and broker_id not in registered:
            log.info("broker %d of epoch %d is gone", broker_id, known.epoch)
            shutting_down.pop(broker_id, None)
            yield plan_departure(image(), broker_id, min_isr, allows_unclean, shutting_down)
    for broker_id, now in registered.items():
        before = image().registrations.get(broker_id)
        if now != before:
            log.info("broker %d has come, in epoch %d", broker_id, now.epoch)
            yield plan_registration(
                image(),
                now,
                min_isr,
                is_clean=partial(now.has_all_records_of, before),
                allows_unclean=allows_unclean,
                shutting_down=shutting_down,
            )
    yield plan_unclean_elections(image(), LiveBrokers(image(), shutting_down), min_isr, allows_unclean)
    yield plan_hand_overs(image(), LiveBrokers(image(), shutting_down), min_isr)
    yield plan_completions(image(), LiveBrokers(image(), shutting_down), min_isr)
