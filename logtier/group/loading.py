"""The groups of a partition of `__consumer_offsets`: made of what its log says, known at once, and then begun."""

import logging
from collections.abc import Iterator

from headwater.logtier.group.classic_groups import ClassicGroups
from headwater.logtier.group.consumer.consumer_group import ConsumerGroup
from headwater.logtier.group.consumer_groups import ConsumerGroups
from headwater.logtier.group.persistence.offsets_topic import OFFSETS_TOPIC
from headwater.logtier.group.persistence.replay import GroupReplay
from headwater.logtier.group.persistence.state_log import GroupStateLog
from headwater.logtier.group.registry import AnyGroup, GroupRegistry

logger = logging.getLogger(__name__)


async def load_groups(
    partition: int, log: GroupStateLog, groups: GroupRegistry, classic: ClassicGroups, consumer: ConsumerGroups
) -> None:
    """Read a partition and register its groups, if it is still here by then; others have their turns meanwhile."""
    restored: dict[str, AnyGroup] = {}
    if not await log.load(partition, lambda replay: _restoring(replay, classic, consumer, restored)):
        return
    # All at once, and before others have a turn: the partition is active.
    groups.update(restored)
    for group in restored.values():
        await log.turns.step()
        if groups.get(group.group_id) is not group:
            continue  # it has moved away, or become another one
        if isinstance(group, ConsumerGroup):
            consumer.begin(group)
        else:
            classic.begin(group)
    if restored:
        logger.info("%s-%d: groups loaded: %d", OFFSETS_TOPIC, partition, len(restored))


def _restoring(
    replay: GroupReplay, classic: ClassicGroups, consumer: ConsumerGroups, restored: dict[str, AnyGroup]
) -> Iterator[None]:
    """Make the groups that a partition's log adds up to, one after the other."""
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
