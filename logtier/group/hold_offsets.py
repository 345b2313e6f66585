"""Committed offsets of the groups that hold back retention, from their coordinators."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, Protocol
from uuid import UUID

from headwater.logtier.group.persistence.offsets import GroupOffsets
from headwater.logtier.group.persistence.offsets_topic import coordinator_of
from headwater.logtier.metadata.image import MetadataImage
from headwater.logtier.metadata.topic_nodes import NO_BROKER
from headwater.logtier.protocol.errors import KafkaError
from headwater.logtier.protocol.topic_partition import TopicPartition

logger = logging.getLogger(__name__)

LIMIT_S: Final = 10.0
"""Time for all coordinators to answer; what has not come by then counts as unknown."""

_Wanted = Mapping[str, Mapping[TopicPartition, UUID]]
_Found = dict[str, dict[TopicPartition, int]]


class LocalGroups(Protocol):
    """The groups that this broker coordinates; see `GroupCoordinator`."""

    def loaded_partition(self, group_id: str) -> TopicPartition:
        """Return the partition that has the offsets of a group; errors as of `committed`."""

    def committed(self, group_id: str) -> GroupOffsets:
        """Return the committed offsets of a group; KafkaError if this broker cannot know them."""


class AskCoordinator(Protocol):
    """Asks another broker for the offsets of groups that it coordinates."""

    async def __call__(self, broker_id: int, wanted: _Wanted, offsets: _Found) -> None:
        """Add each answer to `offsets` as it comes: what came before a cancellation counts."""


class HoldOffsets:
    """Answers for all groups, once a pass; see `HoldGroups` of the log.

    Invariant: each returned offset was committed for a topic of the wanted id. Commits of earlier releases, and those
    with a retention of their own, have no topic id: their offsets are deleted with the topic.

    Two things are not seen. OffsetCommit up to version 9 names topics only: a commit by an old consumer just after the
    topic was created anew is stamped with the new id. And after an unclean election that loses a tail, an offset beyond
    the end holds all only until the log has grown past it.

    Args:
        broker_id: This broker.
        image: Returns the newest metadata.
        check: Returns once no other broker can lead a partition; KafkaError if one may. None on a single node.
        ask: Asks other brokers; None on a single node.
    """

    def __init__(
        self,
        broker_id: int,
        groups: LocalGroups,
        image: Callable[[], MetadataImage],
        check: Callable[[TopicPartition], Awaitable[None]] | None = None,
        ask: AskCoordinator | None = None,
    ) -> None:
        self._broker_id = broker_id
        self._groups = groups
        self._image = image
        self._check = check
        self._ask = ask

    async def committed(self, wanted: _Wanted) -> _Found:
        """Return committed offsets by group and partition; those that are missing or not known are left out."""
        image = self._image()
        by_coordinator: dict[int, dict[str, Mapping[TopicPartition, UUID]]] = {}
        for group_id, partitions in wanted.items():
            by_coordinator.setdefault(coordinator_of(group_id, image), {})[group_id] = partitions
        by_coordinator.pop(NO_BROKER, None)
        answers: dict[int, _Found] = {each: {} for each in by_coordinator}
        asking = {
            asyncio.create_task(self._ask_one(each, of_one, answers[each])): each
            for each, of_one in by_coordinator.items()
        }
        if not asking:
            return {}
        try:
            done, _ = await asyncio.wait(asking, timeout=LIMIT_S)
        finally:
            for task in asking:
                task.cancel()
        for task in done:
            if not task.cancelled() and (error := task.exception()) is not None:
                logger.error(
                    "asking broker %d for the offsets of groups that hold records failed", asking[task], exc_info=error
                )
        found: _Found = {}
        for answer in answers.values():
            found |= answer
        return found

    async def _ask_one(self, coordinator_id: int, wanted: _Wanted, found: _Found) -> None:
        if coordinator_id == self._broker_id:
            await self._ask_this_broker(wanted, found)
        elif self._ask is not None:
            await self._ask(coordinator_id, wanted, found)

    async def _ask_this_broker(self, wanted: _Wanted, found: _Found) -> None:
        by_partition: dict[TopicPartition, dict[str, Mapping[TopicPartition, UUID]]] = {}
        for group_id, partitions in wanted.items():
            try:
                by_partition.setdefault(self._groups.loaded_partition(group_id), {})[group_id] = partitions
            except KafkaError as error:
                _log_unknown(group_id, error)
        asking = [self._ask_partition(partition, of_one, found) for partition, of_one in by_partition.items()]
        for fault in await asyncio.gather(*asking, return_exceptions=True):
            if fault is not None:
                raise fault

    async def _ask_partition(self, partition: TopicPartition, wanted: _Wanted, found: _Found) -> None:
        """Add the offsets of groups of one partition, unless another broker can have begun to lead it."""
        if self._check is not None:
            try:
                await self._check(partition)
            except KafkaError as error:
                logger.debug("%s is not confirmed, and the offsets in it are not known: %s", partition, error)
                return
        for group_id, partitions in wanted.items():
            try:
                if self._groups.loaded_partition(group_id) != partition:
                    continue
                offsets = self._groups.committed(group_id)
            except KafkaError as error:
                _log_unknown(group_id, error)
                continue
            found[group_id] = {
                key: committed.offset
                for key, topic_id in partitions.items()
                if (committed := offsets.get(key)) is not None and committed.topic_id in (None, topic_id)
            }


def _log_unknown(group_id: str, error: KafkaError) -> None:
    logger.debug("the offsets of group %r, which holds records, are not known: %s", group_id, error)
