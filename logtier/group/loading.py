"""Loads the groups of a partition of `__consumer_offsets`: restores, registers and begins them."""

import logging
from collections.abc import Iterator, Mapping

from headwater.logtier.group.classic_groups import ClassicGroups
from headwater.logtier.group.consumer.consumer_group import ConsumerGroup
from headwater.logtier.group.consumer_groups import ConsumerGroups
from headwater.logtier.group.persistence.offsets_topic import OFFSETS_TOPIC
from headwater.logtier.group.persistence.replay import GroupReplay
from headwater.logtier.group.persistence.state_log import GroupStateLog
from headwater.logtier.group.registry import AnyGroup, GroupRegistry
from headwater.logtier.state_topic.loading import Spawn
from headwater.logtier.state_topic.turns import Turns
from headwater.logtier.state_topic.writes import Wait

logger = logging.getLogger(__name__)


async def load_groups(
    partition: int,
    log: GroupStateLog,
    groups: GroupRegistry,
    classic: ClassicGroups,
    consumer: ConsumerGroups,
    spawn: Spawn,
) -> Wait | None:
    """Read a partition and register its groups, if this broker still leads it then; yields to other tasks meanwhile.

    Return the rest of the load, if it has to wait.
    """
    restored: dict[str, AnyGroup] = {}

    def add_groups() -> None:
        # All groups in one turn of the event loop: the partition is active.
        groups.update(restored)
        if restored:
            spawn(_begin(partition, restored, log, groups, classic, consumer))

    return await log.load(partition, lambda replay: _restoring(replay, classic, consumer, restored), add_groups)


async def _begin(
    partition: int,
    restored: Mapping[str, AnyGroup],
    log: GroupStateLog,
    groups: GroupRegistry,
    classic: ClassicGroups,
    consumer: ConsumerGroups,
) -> None:
    async with log.beginning:
        turns = Turns()
        for group in restored.values():
            await turns.step()
            if groups.get(group.group_id) is not group:
                continue  # the group was resigned or replaced
            try:
                if isinstance(group, ConsumerGroup):
                    consumer.begin(group)
                else:
                    classic.begin(group)
            except Exception:
                logger.exception("group %s: its sessions cannot begin", group.group_id)
    logger.info("%s-%d: groups loaded: %d", OFFSETS_TOPIC, partition, len(restored))


def _restoring(
    replay: GroupReplay, classic: ClassicGroups, consumer: ConsumerGroups, restored: dict[str, AnyGroup]
) -> Iterator[None]:
    """Restore the groups of a partition's log, one in each step."""
    for group_id, metadata in replay.groups.items():
        restored[group_id] = classic.restored(group_id, metadata)
        yield
    for state in replay.consumer_groups.values():
        restored[state.group_id] = consumer.restored(state)
        yield
    for group_id in (*replay.offsets, *replay.pending.groups()):
        if group_id not in restored:  # committed without group management
            restored[group_id] = classic.restored(group_id, None)
        yield
