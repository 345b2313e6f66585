"""What the controller must know of this broker's log folders (KIP-858).

Which are online, which are full, and in which one each replica is: a replica in a failed folder is no candidate for
elections, and a leader that cannot append for want of space gives way to one that can.
"""

import asyncio
import contextlib
import errno
import itertools
import logging
import os
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final
from uuid import UUID

from headwater.logtier.client.errors import ClientError, error_name
from headwater.logtier.log.folders.log_directory import LogDirectory
from headwater.logtier.log.log_manager import LogManager
from headwater.logtier.metadata.follower import MetadataFollower
from headwater.logtier.metadata.image import MetadataDelta, TopicImage
from headwater.logtier.metadata.store import MetadataStoreError
from headwater.logtier.peers.controller_channel import NOT_CONTROLLER, STALE_BROKER_EPOCH, ControllerChannel
from headwater.logtier.peers.controller_requests import assign_replicas_to_dirs_request, broker_heartbeat_request
from headwater.logtier.peers.errors import PeersClosedError
from headwater.logtier.protocol import uuids
from headwater.logtier.protocol.errors import ErrorCode
from headwater.logtier.protocol.topic_partition import TopicPartition
from headwater.logtier.runtime.completed import completed
from headwater.logtier.runtime.disk import Disk

log = logging.getLogger(__name__)

REPLICAS_PER_REQUEST_MAX: Final = 2_000

RETRY_S: Final = 1.0
"""Wait before the controller is reported again: it has not answered, or this broker does not have the change yet."""

CONCLUDE_S: Final = 5.0
"""Longest time that a stopping broker takes to report of a folder that has failed."""

ROOM_CHECK_S: Final = 5.0
"""Interval at which a full folder is tried: retention may have made room, or an administrator."""

ROOM_BYTES: Final = 1 << 20
"""A folder has room again when a file of this size can be written."""

_PROBE: Final = ".room"

UpdateFolders = Callable[[tuple[str, ...], tuple[str, ...]], Awaitable[None]]
"""Registers which folders are online and which of them are full."""


class LogDirReports:
    """Tells the controller, again until this broker's image has it; on one event loop.

    Brokers with one folder tell no places: if that folder fails, the broker stops.
    """

    def __init__(
        self,
        broker_id: int,
        channel: ControllerChannel,
        log_manager: LogManager,
        follower: MetadataFollower,
        update_folders: UpdateFolders,
        broker_epoch: Callable[[], int],
    ) -> None:
        self._broker_id = broker_id
        self._channel = channel
        self._log_manager = log_manager
        self._follower = follower
        self._update_folders = update_folders
        self._broker_epoch = broker_epoch
        self._changed = asyncio.Event()
        #: Replicas whose folder is to be compared with the image, with the id of a folder that has failed meanwhile.
        self._unsure: dict[TopicPartition, str | None] = {}
        self._tasks: list[asyncio.Task[None]] = []
        # From now on: a folder may fail before the broker is registered.
        log_manager.on_failed_directory = self._failed
        log_manager.on_moved = self._moved
        for directory in log_manager.directories:
            directory.health.on_full = self._changed.set

    def start(self) -> None:
        """Begin to tell what differs from the image; the broker is registered."""
        self._follower.cache.subscribe(self._metadata_changed)
        self._check(self._follower.image.topics.values())
        self._changed.set()
        self._tasks = [asyncio.create_task(self._run()), asyncio.create_task(self._look_for_room())]

    async def conclude(self) -> None:
        """Tell no more, but what the controller does not have of failed folders.

        A broker stops when its last folder has failed. After a restart its records are not trusted.
        """
        await self.aclose()
        with contextlib.suppress(TimeoutError, ClientError, MetadataStoreError, PeersClosedError):
            async with asyncio.timeout(CONCLUDE_S):
                while not await self._tell_folders():  # noqa: ASYNC110 - each time it is told again
                    await asyncio.sleep(CONCLUDE_S / 20)

    async def aclose(self) -> None:
        """Tell no more."""
        for task in self._tasks:
            task.cancel()
        for task in self._tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task

    # -- what happens

    def _failed(self, directory: LogDirectory, gone: Sequence[TopicPartition]) -> None:
        log.warning("broker %d gives the leaderships in log folder %s away", self._broker_id, directory.path)
        # Before all others: their leaders are to be replaced.
        told_first: dict[TopicPartition, str | None] = dict.fromkeys(gone, directory.directory_id)
        self._unsure = told_first | {key: id_ for key, id_ in self._unsure.items() if key not in told_first}
        self._changed.set()

    def _moved(self, topic_partition: TopicPartition) -> None:
        self._unsure[topic_partition] = None
        self._changed.set()

    def _metadata_changed(self, delta: MetadataDelta) -> None:
        self._check((*delta.created, *delta.changed))

    def _check(self, topics: Iterable[TopicImage]) -> None:
        for topic in topics:
            for index, partition in enumerate(topic.partitions):
                if self._broker_id not in partition.replicas:
                    continue
                if len(self._log_manager.directories) > 1 or partition.directory_of(self._broker_id):
                    self._unsure.setdefault(TopicPartition(topic.name, index), None)
        if self._unsure:
            self._changed.set()

    # -- what is reported

    async def _run(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            try:
                is_known = await self._tell_folders() and await self._tell_replicas()
            except PeersClosedError:
                return  # the broker stops
            except (ClientError, MetadataStoreError) as error:
                log.info("the controller has no report of the log folders: %s", error)
                is_known = False
            except Exception:
                # A broker that never reported of a failed folder would lead without it.
                log.exception("the controller has no report of the log folders")
                is_known = False
            if not is_known:
                await asyncio.sleep(RETRY_S)
                self._changed.set()

    async def _tell_folders(self) -> bool:
        """Register the state of the folders; return whether this broker's image has it."""
        online = self._log_manager.online_folders
        full = tuple(each.identity for each in self._log_manager.directories if each.is_online and each.health.is_full)
        known = self._follower.image.registrations.get(self._broker_id)
        if known is not None and (known.process.directory_ids, known.process.full_directories) == (online, full):
            return True
        await self._update_folders(online, full)
        directories = self._log_manager.directories
        answer = await self._channel.call(
            lambda: broker_heartbeat_request(
                self._broker_id,
                self._broker_epoch(),
                self._follower.applied,
                offline_log_dirs=_ids(each for each in directories if not each.is_online),
                cordoned_log_dirs=_ids(each for each in directories if each.is_online and each.health.is_full),
            ),
            lambda answer: answer.error_code,
            retriable=(NOT_CONTROLLER, STALE_BROKER_EPOCH),
        )
        if answer.error_code:
            log.warning("the controller takes no state of log folders: %s", error_name(answer.error_code))
        return False  # until the image has it

    async def _tell_replicas(self) -> bool:
        """Tell in which folders replicas are; return whether this broker's image has all of it."""
        differing = self._differing()
        is_known = True
        while batch := dict(itertools.islice(differing, REPLICAS_PER_REQUEST_MAX)):
            is_known = False  # until the image has them
            if not await self._tell_places(batch):
                break
        return is_known

    async def _tell_places(self, batch: Mapping[TopicPartition, tuple[str, UUID]]) -> bool:
        """Tell the folders of replicas; return whether the controller has taken the request."""
        by_directory: dict[UUID, list[tuple[UUID, int]]] = defaultdict(list)
        for key, (directory_id, topic_id) in batch.items():
            by_directory[uuids.from_text(directory_id)].append((topic_id, key.partition))
        answer = await self._channel.call(
            lambda: assign_replicas_to_dirs_request(self._broker_id, self._broker_epoch(), by_directory),
            lambda answer: answer.error_code,
            retriable=(NOT_CONTROLLER, STALE_BROKER_EPOCH),
        )
        if answer.error_code:
            log.warning("the controller takes no places of replicas: %s", error_name(answer.error_code))
            return False
        for key, (_, topic_id) in batch.items():
            topic = self._follower.image.topic(key.topic)
            is_present = topic is None or topic.topic_id == topic_id
            if is_present and answer.replicas.get((topic_id, key.partition)) != ErrorCode.none:
                # The controller knows a newer state, of which this broker is reported by the metadata.
                self._unsure.pop(key, None)
        return True

    def _differing(self) -> Iterator[tuple[TopicPartition, tuple[str, UUID]]]:
        """Yield the replicas whose folder the image does not have, with the folder's and the topic's id."""
        for key, failed in list(self._unsure.items()):
            topic = self._follower.image.topic(key.topic)
            if topic is None or key.partition >= len(topic.partitions):
                self._unsure.pop(key, None)
                continue
            partition = topic.partitions[key.partition]
            present = self._log_manager.logs.get(key)
            directory_id = failed if present is None else self._log_manager.directory_of(key).directory_id
            if self._broker_id not in partition.replicas or directory_id == partition.directory_of(self._broker_id):
                self._unsure.pop(key, None)
            elif directory_id is not None:  # else the log is yet to be created
                yield key, (directory_id, topic.topic_id)

    # -- room

    async def _look_for_room(self) -> None:
        while True:
            await asyncio.sleep(ROOM_CHECK_S)
            if self._unsure:
                self._changed.set()  # A log that could not be created may be there now.
            for directory in list(self._log_manager.directories):
                if directory.is_online and directory.health.is_full:
                    await self._try(directory)

    async def _try(self, directory: LogDirectory) -> None:
        disk = self._log_manager.disk
        try:
            await completed(disk.in_background(partial(_write_probe, disk, f"{directory.path}/{_PROBE}")))
        except OSError as error:
            directory.health.observe(f"write to {directory.path}", error)
            return
        log.info("log folder %s has room again", directory.path)
        directory.health.is_full = False
        self._changed.set()


def _ids(directories: Iterable[LogDirectory]) -> list[UUID]:
    return [uuids.from_text(each.directory_id) for each in directories if each.directory_id]


def _write_probe(disk: Disk, path: str) -> None:
    if disk.free_bytes(os.path.dirname(path)) < 2 * ROOM_BYTES:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)  # What is left is for checkpoints.
    try:
        disk.write_atomic(path, bytes(ROOM_BYTES), sync=False)
    finally:
        for each in (path, f"{path}.tmp"):
            disk.remove(each)
