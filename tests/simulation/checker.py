"""The invariants of one broker, checked on the files that it writes and on the state that it holds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from headwater.logtier.log.folders.log_folders import parse_folder
from headwater.logtier.log.log import Log
from headwater.logtier.protocol.topic_partition import TopicPartition
from headwater.logtier.replication.partition import Partition
from tests.simulation.coordinator_checker import CoordinatorChecker
from tests.simulation.file_system import Folder, Inode
from tests.simulation.history import History, InvariantError
from tests.simulation.log_model import BatchKey, LogModel, is_segment
from tests.simulation.node import Incarnation, SimulatedNode
from tests.simulation.virtual_loop import VirtualLoop


class NodeChecker:
    """Checks one broker: after each callback what it has written, and all of it when it begins to serve and on demand.

    Invariants, by their number in docs/reliability.md: 3 (the same offset and epoch have the same record), 5 (the
    high watermark never falls), 8 (last stable offset <= high watermark <= log end), 9 (a coordinator's state, and that
    of producers, equals the replay of its log), 10 (sequences are contiguous, no record is there twice), and that what
    was acknowledged is there.

    Attributes:
        on_batch: Called with each batch that a log has, and the one before it.
        on_truncated: Called with the former and the present state of a log that lost records while its broker serves.
        is_lost: Whether a partition lost committed records, as it may in this run.
        coordinators: Checks the state of groups and transactions.
    """

    def __init__(self, loop: VirtualLoop, node: SimulatedNode, history: History, *, is_alone: bool = True) -> None:
        """`is_alone`: the logs of this broker are the only ones, and have what was acknowledged."""
        self.node = node
        self.on_batch: Callable[[LogModel, int, BatchKey, BatchKey | None], None] = lambda *_: None
        self.on_truncated: Callable[[LogModel, LogModel], None] = _must_not_truncate
        self.is_lost: Callable[[TopicPartition], bool] = lambda _: False
        self.logs: dict[TopicPartition, LogModel] = {}
        self.coordinators = CoordinatorChecker(
            node, history, lambda: {key: model.folder for key, model in self.logs.items()}, self.partition
        )
        self._loop = loop
        self._history = history
        self._is_alone = is_alone
        #: Segments that the present callback has written to.
        self._touched: dict[str, None] = {}
        self._high_watermarks: dict[Partition[Log], int] = {}
        node.on_write = self._written
        node.on_serving = self._serving
        loop.checks.append(self._after_step)

    def log(self, key: TopicPartition) -> LogModel | None:
        """The log of a partition while the broker serves, as its files say."""
        return self.present_log(key) if self.node.serving is not None else None

    def present_log(self, key: TopicPartition) -> LogModel | None:
        """The log of a partition as its files say, also of a broker that does not serve.

        A partition that came back to this broker begins anew, in another folder.
        """
        model = self.logs.get(key)
        partition = None if model is None else self.partition(key)
        if model is not None and partition is not None:
            folder = self.node.file_system.find(partition.log.directory)
            if folder is not model.folder and isinstance(folder, Folder):
                model = self.logs[key] = self._new_model(key, folder)
                model.read_all()
        return model

    def partition(self, key: TopicPartition) -> Partition[Log] | None:
        """The replica of a partition while the broker serves, if its log is usable."""
        parts = self.node.parts
        return None if parts is None else parts.replica_manager.usable_partition(key)

    def ends(self, topic: str) -> dict[TopicPartition, int]:
        """The ends of a topic's logs, as their files say."""
        return {key: model.end for key, model in self.logs.items() if key.topic == topic}

    def _written(self, path: str) -> None:
        if is_segment(path):
            self._touched[path] = None
            self._loop.is_touched = True

    def _after_step(self) -> None:
        if not self._touched:
            return
        touched = sorted(self._touched)
        self._touched.clear()
        if self.node.serving is None:
            return  # it recovers; what it leaves is checked when it serves
        keys: dict[TopicPartition, None] = {}
        for path in touched:
            folder_path, name = path.rsplit("/", 1)
            key = _partition_of(folder_path.rpartition("/")[2])
            folder = self.node.file_system.find(folder_path)
            inode = self.node.file_system.find(path)
            if key is not None and isinstance(folder, Folder) and isinstance(inode, Inode):
                self._read_on(key, folder, inode, name)
                keys[key] = None
        for key in keys:  # one callback may write the end of a segment and the next one
            self.check_partition(key)

    # -- one log

    def _read_on(self, key: TopicPartition, folder: Folder, inode: Inode, name: str) -> None:
        model = self.logs.get(key)
        if model is not None and model.folder is folder and model.continues_in(inode, name):
            model.read_on(inode, name)
            return
        newer = self.logs[key] = self._new_model(key, folder)
        newer.read_all()
        if model is not None and model.folder is folder:
            model.compare(newer)
            self.on_truncated(model, newer)

    def _new_model(self, key: TopicPartition, folder: Folder) -> LogModel:
        history = self._history
        may_miss = key.topic in history.lossy_topics or history.has_lost
        return LogModel(key, folder, self._batch_taken, may_miss)

    def _batch_taken(self, model: LogModel, end: int, batch: BatchKey, before: BatchKey | None) -> None:
        self.on_batch(model, end, batch, before)

    def check_partition(self, key: TopicPartition) -> None:
        """Check the offsets of a replica."""
        partition = self.partition(key)
        if partition is None:
            return
        model = self.present_log(key)
        end = 0 if model is None else model.end
        high_watermark = partition.high_watermark
        if partition.log.log_end_offset != end:
            raise InvariantError(f"{key}: the log end is {partition.log.log_end_offset}, its files end at {end}")
        if not partition.last_stable_offset <= high_watermark <= end:
            raise InvariantError(
                f"{key}: last stable offset {partition.last_stable_offset}, high watermark {high_watermark}, end {end}"
            )
        if high_watermark < self._high_watermarks.get(partition, 0) and not self.is_lost(key):
            raise InvariantError(
                f"{key}: the high watermark of {self.node.name} fell from {self._high_watermarks[partition]} to "
                f"{high_watermark}"
            )
        self._high_watermarks[partition] = high_watermark

    # -- the whole broker

    def _serving(self, incarnation: Incarnation) -> None:
        """A broker has recovered: its logs are read anew, and have what was acknowledged."""
        self._history.note(self._loop.time(), "serving", incarnation.process.name)
        self._high_watermarks.clear()
        self._touched.clear()
        before, self.logs = self.logs, {}
        parts = incarnation.broker.parts
        assert parts is not None
        # What lies in a folder that failed has not been recovered.
        online = [each.path for each in parts.log_manager.directories if each.is_online]
        folders = [self.node.file_system.folder(path) for path in online]
        for name, node in [entry for folder in folders for entry in sorted(folder.entries.items())]:
            key = _partition_of(name)
            if key is not None and isinstance(node, Folder):
                model = self.logs[key] = self._new_model(key, node)
                model.read_all()
        for key, old in before.items():
            if key in self.logs and self.logs[key].topic_id == old.topic_id:
                old.compare(self.logs[key])
        self._check_acknowledged()

    def _check_acknowledged(self) -> None:
        if not self._is_alone:
            return
        for key, known in self._history.acknowledged.items():
            check_acknowledged(key, known, self.logs.get(key))

    def check_all(self) -> None:
        """Check everything that holds between two callbacks of a broker that serves."""
        parts = self.node.parts
        if parts is None:
            return
        self._check_acknowledged()
        for key in self.logs:
            self.check_partition(key)
            self._check_producers(key)
        self.coordinators.check()

    def _check_producers(self, key: TopicPartition) -> None:
        """The state of producers equals what the log's batches say."""
        partition = self.partition(key)
        if partition is None:
            return
        known = {
            (producer_id, state.epoch): state.batches[-1].last_sequence
            for producer_id, state in partition.log.producers
            if state.batches
        }
        if known != self.logs[key].sequences:
            raise InvariantError(f"{key}: the producers are {known}, the log has {self.logs[key].sequences}")

    async def check_periodically(self, interval_s: float) -> None:
        """Check everything at each interval, until cancelled."""
        while True:
            await asyncio.sleep(interval_s)
            self.check_all()


def _partition_of(folder: str) -> TopicPartition | None:
    parsed = parse_folder(folder)
    return None if parsed is None or parsed.is_future else parsed.topic_partition


def check_acknowledged(key: TopicPartition, known: dict[int, bytes], model: LogModel | None) -> None:
    """Check that a log has the acknowledged records of its partition."""
    entries = {} if model is None else model.entries
    for offset, value in known.items():
        entry = entries.get(offset)
        if entry is None or entry.value != value:
            raise InvariantError(
                f"{key}: {value!r} was acknowledged at offset {offset}, where the log has {entry}; "
                f"it ends at {0 if model is None else model.end}"
            )


def _must_not_truncate(before: LogModel, after: LogModel) -> None:
    raise InvariantError(f"{before.key}: the log ended at {before.end}, and was cut to end at {after.end}")
