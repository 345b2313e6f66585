"""The invariants of one broker, checked on the files that it writes and on the state that it holds."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from headwater.logtier.group.classic.group import Group
from headwater.logtier.group.events import GroupMetadata, GroupState
from headwater.logtier.group.persistence.offsets_topic import OFFSETS_TOPIC
from headwater.logtier.group.persistence.replay import GroupReplay
from headwater.logtier.log.folders.log_folders import parse_folder
from headwater.logtier.protocol.topic_partition import TopicPartition
from headwater.logtier.records.batch import (
    NO_PRODUCER_ID,
    RecordBatchHeader,
    check_batch,
    decode_records,
    iterate_batches,
)
from tests.simulation.file_system import Folder, Inode
from tests.simulation.history import Entry, History, InvariantError
from tests.simulation.node import DATA, Incarnation, SimulatedNode
from tests.simulation.virtual_loop import VirtualLoop

_LOG_SUFFIX = ".log"


@dataclass(slots=True)
class LogModel:
    """A log as its files say.

    Attributes:
        entries: Records by offset.
        sequences: Last sequence by producer id and epoch.
        file, position: How far the newest segment has been read.
    """

    entries: dict[int, Entry] = field(default_factory=dict)
    offsets: dict[bytes, int] = field(default_factory=dict)
    sequences: dict[tuple[int, int], int] = field(default_factory=dict)
    end: int = 0
    leader_epoch: int = -1
    file: Inode | None = None
    position: int = 0


class NodeChecker:
    """Checks one broker: after each callback what it has written, and all of it when it begins to serve and on demand.

    Invariants, by their number in docs/reliability.md: 3 (the same offset and epoch have the same record), 5 (the
    high watermark never falls), 8 (last stable offset <= high watermark <= log end), 9 (a coordinator's state, and that
    of producers, equals the replay of its log), 10 (sequences are contiguous, no record is there twice), and that what
    was acknowledged is there.
    """

    def __init__(self, loop: VirtualLoop, node: SimulatedNode, history: History) -> None:
        self._loop = loop
        self._node = node
        self._history = history
        self._logs: dict[TopicPartition, LogModel] = {}
        #: Segments that the present callback has written to.
        self._touched: set[str] = set()
        self._high_watermarks: dict[TopicPartition, int] = {}
        node.on_write = self._written
        node.on_serving = self._serving
        loop.checks.append(self._after_step)

    def ends(self, topic: str) -> dict[TopicPartition, int]:
        """The ends of a topic's logs, as their files say."""
        return {key: model.end for key, model in self._logs.items() if key.topic == topic}

    def _written(self, path: str) -> None:
        if path.endswith(_LOG_SUFFIX):
            self._touched.add(path)
            self._loop.is_touched = True

    def _after_step(self) -> None:
        touched = sorted(self._touched)
        self._touched.clear()
        if self._node.serving is None:
            return  # it recovers; what it leaves is checked when it serves
        for path in touched:
            folder = path.rsplit("/", 2)[1]
            key = _partition_of(folder)
            inode = self._node.file_system.find(path)
            if key is not None and isinstance(inode, Inode):
                self._read_on(key, inode, path)
                self._check_partition(key)

    # -- one log

    def _read_on(self, key: TopicPartition, inode: Inode, path: str) -> None:
        model = self._logs.setdefault(key, LogModel())
        if model.file is not inode:
            base_offset = int(path.rsplit("/", 1)[1].removesuffix(_LOG_SUFFIX))
            if base_offset != model.end:
                raise InvariantError(f"{key}: a segment begins at {base_offset}, the log ends at {model.end}")
            model.file, model.position = inode, 0
        data = bytes(inode.data[model.position :])
        for _, batch in iterate_batches(data):
            self._take(key, model, bytes(batch))
        model.position = len(inode.data)

    def _take(self, key: TopicPartition, model: LogModel, batch: bytes) -> None:
        header = check_batch(batch)
        if header.base_offset != model.end:
            raise InvariantError(f"{key}: a batch begins at {header.base_offset}, the log ends at {model.end}")
        if header.partition_leader_epoch < model.leader_epoch:
            raise InvariantError(f"{key}: leader epoch {header.partition_leader_epoch} after {model.leader_epoch}")
        model.leader_epoch = header.partition_leader_epoch
        self._check_sequence(key, model, header)
        for record in decode_records(batch):
            if key.topic == OFFSETS_TOPIC:
                continue
            assert record.value is not None
            entry = Entry(header.partition_leader_epoch, record.value.rstrip())
            twice = model.offsets.setdefault(entry.value, record.offset)
            if twice != record.offset:
                raise InvariantError(f"{key}: record {entry.value!r} is at offsets {twice} and {record.offset}")
            before = model.entries.get(record.offset)
            if before is not None and before.leader_epoch == entry.leader_epoch and before != entry:
                raise InvariantError(f"{key}: offset {record.offset} of one epoch had {before}, has {entry}")
            model.entries[record.offset] = entry
        model.end = header.last_offset + 1

    def _check_sequence(self, key: TopicPartition, model: LogModel, header: RecordBatchHeader) -> None:
        if header.producer_id == NO_PRODUCER_ID:
            return
        producer = (header.producer_id, header.producer_epoch)
        last = model.sequences.get(producer)
        expected = 0 if last is None else last + 1
        # As in Kafka, a producer of which nothing is left may begin with any sequence.
        is_lost = last is None and self._history.may_lose and self._history.losses > 0
        if header.base_sequence != expected and not is_lost:
            raise InvariantError(
                f"{key}: producer {header.producer_id} wrote sequence {header.base_sequence}, due was {expected}"
            )
        model.sequences[producer] = header.last_sequence

    def _check_partition(self, key: TopicPartition) -> None:
        assert self._node.parts is not None
        partition = self._node.parts.replica_manager.usable_partition(key)
        if partition is None:
            return
        end = self._logs[key].end
        high_watermark = partition.high_watermark
        if partition.log.log_end_offset != end:
            raise InvariantError(f"{key}: the log end is {partition.log.log_end_offset}, its files end at {end}")
        if not partition.last_stable_offset <= high_watermark <= end:
            raise InvariantError(
                f"{key}: last stable offset {partition.last_stable_offset}, high watermark {high_watermark}, end {end}"
            )
        if high_watermark < self._high_watermarks.get(key, 0):
            raise InvariantError(f"{key}: the high watermark fell to {high_watermark}")
        self._high_watermarks[key] = high_watermark

    # -- the whole broker

    def _serving(self, incarnation: Incarnation) -> None:
        """A broker has recovered: its logs are read anew, and have what was acknowledged."""
        self._history.note(self._loop.time(), "serving", incarnation.process.name)
        self._high_watermarks.clear()
        self._touched.clear()
        before, self._logs = self._logs, {}
        self._read_files()
        for key, old in before.items():
            new = self._logs.setdefault(key, LogModel())
            for offset, entry in old.entries.items():
                found = new.entries.get(offset)
                if found is not None and found.leader_epoch == entry.leader_epoch and found != entry:
                    raise InvariantError(f"{key}: offset {offset} of one epoch had {entry}, has {found}")
        self._check_acknowledged()

    def _read_files(self) -> None:
        folder = self._node.file_system.find(DATA)
        assert isinstance(folder, Folder)
        for name, node in sorted(folder.entries.items()):
            key = _partition_of(name)
            if key is not None and isinstance(node, Folder):
                for file_name, inode in self._segments(name):
                    self._read_on(key, inode, f"{DATA}/{name}/{file_name}")

    def _segments(self, name: str) -> list[tuple[str, Inode]]:
        """The segment files of a log's folder, oldest first."""
        return [
            (file_name, inode)
            for file_name, inode in sorted(self._node.file_system.folder(f"{DATA}/{name}").entries.items())
            if file_name.endswith(_LOG_SUFFIX) and isinstance(inode, Inode)
        ]

    def _check_acknowledged(self) -> None:
        for key, known in self._history.acknowledged.items():
            model = self._logs.get(key, LogModel())
            for offset, value in known.items():
                entry = model.entries.get(offset)
                if entry is None or entry.value != value:
                    raise InvariantError(
                        f"{key}: {value!r} was acknowledged at offset {offset}, where the log has {entry}; "
                        f"it ends at {model.end}"
                    )

    def check_all(self) -> None:
        """Check everything that holds between two callbacks of a broker that serves."""
        parts = self._node.parts
        if parts is None:
            return
        self._check_acknowledged()
        for key in self._logs:
            self._check_partition(key)
            self._check_producers(key)
        self._check_groups()

    def _check_producers(self, key: TopicPartition) -> None:
        """The state of producers equals what the log's batches say."""
        assert self._node.parts is not None
        partition = self._node.parts.replica_manager.usable_partition(key)
        if partition is None:
            return
        known = {
            (producer_id, state.epoch): state.batches[-1].last_sequence
            for producer_id, state in partition.log.producers
            if state.batches
        }
        if known != self._logs[key].sequences:
            raise InvariantError(f"{key}: the producers are {known}, the log has {self._logs[key].sequences}")

    def _check_groups(self) -> None:
        """The offsets of groups equal the replay of their log, apart from writes that are not answered yet."""
        assert self._node.parts is not None
        parts = self._node.parts
        live = parts.services.groups._log
        if live._tasks or live.is_loading:
            return
        for key in self._logs:
            if key.topic != OFFSETS_TOPIC or not live.is_active(key.partition):
                continue
            replay = GroupReplay(str(key), key.partition)
            for _, inode in self._segments(str(key)):
                for _, batch in iterate_batches(bytes(inode.data)):
                    for _ in replay.applying(bytes(batch)):
                        pass
            mine = {
                group: dict(offsets.items())
                for group, offsets in live.offsets.items()
                if live.partition_of(group) == key.partition
            }
            replayed = {group: dict(offsets.items()) for group, offsets in replay.offsets.items()}
            if mine != replayed:
                raise InvariantError(f"{key}: the coordinator has {mine}, its log has {replayed}")
            for group_id, metadata in replay.groups.items():
                self._check_generation(group_id, metadata)

    def _check_generation(self, group_id: str, written: GroupMetadata) -> None:
        """A stable group is the one that its log has, and no acknowledged generation is forgotten."""
        assert self._node.parts is not None
        if written.generation_id < self._history.generations.get(group_id, -1):
            raise InvariantError(f"group {group_id}: generation {written.generation_id} is the last in the log")
        live = self._node.parts.services.groups.group(group_id)
        if isinstance(live, Group) and live.state is GroupState.STABLE:
            if live.generation_id != written.generation_id:
                raise InvariantError(
                    f"group {group_id} is in generation {live.generation_id}, its log in {written.generation_id}"
                )
            if {member.member_id for member in live.members} != {member.member_id for member in written.members}:
                raise InvariantError(f"group {group_id}: its members are not those of its log")

    async def check_periodically(self, interval_s: float) -> None:
        """Check everything at each interval, until cancelled."""
        while True:
            await asyncio.sleep(interval_s)
            self.check_all()


def _partition_of(folder: str) -> TopicPartition | None:
    parsed = parse_folder(folder)
    return None if parsed is None or parsed.is_future else parsed.topic_partition
