"""The checks find planted bugs of coordinators of groups and transactions."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from headwater.logtier.group.coordinator import GroupCoordinator
from headwater.logtier.group.persistence.records import OffsetKey
from headwater.logtier.group.persistence.replay import GroupReplay
from headwater.logtier.metadata.image import MetadataImage
from headwater.logtier.protocol.errors import KafkaError
from headwater.logtier.protocol.topic_partition import TopicPartition
from headwater.logtier.records.batch import NO_PRODUCER_ID
from headwater.logtier.state_topic.log import StateTopicLog, UndecidedWriteError
from headwater.logtier.state_topic.writes import PartitionState
from headwater.logtier.transaction.verifier import ClusterVerifier
from tests.simulation.cluster.run import run_cluster

Plant = Callable[[pytest.MonkeyPatch], None]
SEEDS_MAX = 6
DURATION_S = 15.0


def members_are_not_loaded(patch: pytest.MonkeyPatch) -> None:
    """The groups of KIP-848 are lost with their coordinator."""
    patch.setattr(GroupReplay, "_apply_consumer", lambda *_: None)


def pending_offsets_are_not_loaded(patch: pytest.MonkeyPatch) -> None:
    """The offsets of an open transaction are lost with their coordinator."""
    apply = GroupReplay._apply_offset

    def without_pending(self: GroupReplay, key: OffsetKey, record: Any, producer_id: int) -> None:
        if producer_id == NO_PRODUCER_ID:
            apply(self, key, record, producer_id)

    patch.setattr(GroupReplay, "_apply_offset", without_pending)


def a_partition_serves_before_the_watermark(patch: pytest.MonkeyPatch) -> None:
    """A new coordinator takes over what may be cut off again."""
    read = StateTopicLog._read

    async def at_once(self: StateTopicLog, partition: int, replay: Any, adopt: Any, restoring: Any = ()) -> None:
        if await read(self, partition, replay, adopt, restoring) is not None:
            self._partitions[partition].state = PartitionState.ACTIVE
            adopt()

    patch.setattr(StateTopicLog, "_read", at_once)


def a_partition_never_serves_that_had_to_wait(patch: pytest.MonkeyPatch) -> None:
    async def never(*_: Any) -> None:
        """Forget the load."""

    patch.setattr(StateTopicLog, "_adopt_when_committed", never)


def a_write_that_times_out_counts_as_refused(patch: pytest.MonkeyPatch) -> None:
    """KAFKA-7142 and others: the record is in the log all the same, and the next coordinator finds it."""
    write = StateTopicLog._write

    async def refuse(self: StateTopicLog, name: str, batch: bytes, **options: Any) -> int:
        applied, refused = options["applied"], options.get("refused", lambda _: None)
        is_over = False

        def apply(offset: int) -> None:
            if not is_over:
                applied(offset)

        def take_back(error: KafkaError) -> None:
            if not is_over:
                refused(error)

        try:
            return await write(self, name, batch, **{**options, "applied": apply, "refused": take_back})
        except UndecidedWriteError as error:
            is_over = True
            refused(error)
            raise

    patch.setattr(StateTopicLog, "_write", refuse)


def partitions_of_transactions_are_not_verified(patch: pytest.MonkeyPatch) -> None:
    """KIP-890: the coordinator does not know of the partition, which gets no marker."""
    patch.setattr(ClusterVerifier, "verify_partition", lambda *_: None)


def a_topic_is_missed_in_an_older_image(patch: pytest.MonkeyPatch) -> None:
    """The offsets of a topic that was made since are taken for those of a deleted one, as absence tells."""
    images: dict[GroupCoordinator, tuple[MetadataImage, MetadataImage]] = {}
    begin, find = GroupCoordinator._begin_forgetting, GroupCoordinator._of_missing_topics

    def begin_forgetting(self: GroupCoordinator) -> None:
        present = self._metadata.image
        images[self] = images.get(self, (present, present))[1], present
        begin(self)

    def in_older_image(self: GroupCoordinator, group_id: str) -> list[TopicPartition]:
        metadata = self._metadata
        image = SimpleNamespace(topic=images[self][0].topic, is_deleted=lambda _: True)
        self._metadata = cast(Any, SimpleNamespace(image=image))
        try:
            return find(self, group_id)
        finally:
            self._metadata = metadata

    patch.setattr(GroupCoordinator, "_begin_forgetting", begin_forgetting)
    patch.setattr(GroupCoordinator, "_of_missing_topics", in_older_image)


#: What the checks say of each, and a seed of which they say it.
PLANTS: dict[Plant, tuple[str, int]] = {
    members_are_not_loaded: ("members of modern", 1),
    pending_offsets_are_not_loaded: ("its log has None", 1),
    a_partition_serves_before_the_watermark: ("the coordinator has", 6),
    a_partition_never_serves_that_had_to_wait: ("are not stable", 3),
    a_write_that_times_out_counts_as_refused: ("the coordinator has", 3),
    partitions_of_transactions_are_not_verified: ("TimeoutError", 1),
    a_topic_is_missed_in_an_older_image: ("the group has offset -1 of its topic", 1),
}


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.slow
@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.__name__)
def test_a_planted_bug_of_a_coordinator_is_found(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    message, first = PLANTS[plant]
    found = []
    for seed in range(first, first + SEEDS_MAX):
        violation = run_cluster(seed, DURATION_S).violation
        if violation is not None:
            found.append(violation)
            if message in violation:
                return
    pytest.fail(f"not found: {found}")
