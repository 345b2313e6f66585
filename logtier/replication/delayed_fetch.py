"""A fetch that waits for `min_bytes` of records for at most `max_wait`."""

import asyncio
from collections.abc import Callable, Collection, Sequence

from headwater.logtier.log.log import Log, LogSlice
from headwater.logtier.protocol.fetch_response import FetchedPartition, RecordSlice, TaggedPartition
from headwater.logtier.protocol.topic_partition import TopicPartition
from headwater.logtier.replication.cold_reads import ColdRead
from headwater.logtier.replication.partition import Partition
from headwater.logtier.replication.partition_reads import Fetched, FetchPartition, PartitionReads


class DelayedFetch:
    """Completes when one of these cases holds (as Kafka's DelayedFetch):

    - Case A: a partition was removed, or its leader, epoch, log or log start offset changed, and an error may be
      reported.
    - Case B: the readable records reach `bytes_min`.
    - Case C: the time is over.
    - Case D: the records of a partition end with their segment: later records need another fetch, since a response has
      records of one segment.

    Invariant: if `bytes_min` is above 1, `_size` is the sum of the readable bytes of each partition, each at most its
    `bytes_max`. Otherwise nothing is readable while the fetch waits, and nothing is counted: most fetches are of this
    kind.

    When a partition changes, only that partition is checked: its bound (high watermark or last stable offset) and the
    growth of its log. Logs are read when the fetch completes; in addition, a last stable offset that moves to an offset
    before the log end requires a read of that partition to measure its bytes.
    """

    def __init__(
        self,
        wanted: Sequence[FetchPartition],
        fetched: Fetched,
        bytes_min: int,
        reads: PartitionReads,
        read: Callable[[], Fetched | asyncio.Future[Fetched]],
        may_wait: bool = False,
    ) -> None:
        """Begin with `fetched`, just read without an error and too small.

        Args:
            read: Reads all partitions again; returns a future if that waits for the device.
            may_wait: Whether `fetched` was read with waits for the device.
        """
        self._fetched = fetched
        self._has_moved = False
        #: An answer may wait for the device: what moves meanwhile is for the next fetch.
        self._is_answering = False
        self._bytes_min = bytes_min
        self._reads = reads
        self._read = read
        #: Its result has the partitions in the order of the request.
        self.future: asyncio.Future[Fetched] = asyncio.get_running_loop().create_future()
        self._wanted = wanted
        #: Index of each partition in the request; of a partition listed twice, the entry with the lower offset.
        self._places: dict[TopicPartition, int] = {}
        for place, each in enumerate(wanted):
            known = self._places.setdefault(each.topic_partition, place)
            if each.offset < wanted[known].offset:
                self._places[each.topic_partition] = place
        self._readable: dict[TopicPartition, tuple[_Readable, ...]] = {}
        self._size = 0
        self._must_answer = False
        if bytes_min > 1:
            for each, found in zip(wanted, fetched, strict=True):
                if not each.is_throttled:
                    self._count(each, found, may_wait)

    def _count(self, wanted: FetchPartition, found: FetchedPartition, may_wait: bool) -> None:
        key = wanted.topic_partition
        partition = self._reads.partition(key)
        assert partition is not None
        readable = _Readable(wanted, found, partition, self._reads)
        if wanted.offset < readable.bound and not readable.take(found, may_wait):
            self._must_answer = True
        self._size += readable.size
        self._readable[key] = (*self._readable[key], readable) if key in self._readable else (readable,)

    @property
    def partitions(self) -> Collection[TopicPartition]:
        """The partitions whose changes can complete the fetch."""
        return self._places

    @property
    def is_due(self) -> bool:
        """Whether the fetch need not wait: case B or D."""
        return self._must_answer or self._size >= self._bytes_min

    def try_complete(self, moved: TopicPartition) -> bool:
        """Complete in case A, B or D."""
        if self._is_answering or self.future.done():
            return True
        self._has_moved = True
        partition = self._reads.partition(moved)
        if self._readable:
            for readable in self._readable.get(moved, ()):
                before = readable.size
                if not readable.follow(partition):
                    self._must_answer = True
                self._size += readable.size - before
        else:
            place = self._places[moved]
            self._must_answer = self._wanted[place].has_news(partition, self._end_before(place))
        if self._must_answer or self._size >= self._bytes_min:
            self._answer()
            return True
        return False

    def complete_with(self, moved: FetchPartition) -> bool:
        """Complete if a partition that was not read, because all its records had been, has others or an error now."""
        if self._is_answering or self.future.done():
            return True
        self._has_moved = True
        if moved.has_news(self._reads.partition(moved.topic_partition), moved.offset):
            self._answer()
            return True
        return False

    def _end_before(self, place: int) -> int:
        """The end of the records of a partition without readable ones, when it was read."""
        wanted, found = self._wanted[place], self._fetched[place]
        if wanted.is_of_replica:
            return wanted.offset  # it has reached the log end
        return found.last_stable_offset if wanted.is_read_committed else found.high_watermark

    def expire(self) -> None:
        """Complete in case C."""
        if self._is_answering or self.future.done():
            return
        if self._has_moved:
            self._answer()
        else:
            self.future.set_result(self._fetched)

    def _answer(self) -> None:
        self._is_answering = True
        try:
            found = self._read()
        except Exception as error:  # noqa: BLE001 (the error concerns the fetch, not the producer that completes it)
            self.future.set_exception(error)
            return
        if isinstance(found, list):
            self.future.set_result(found)
        else:
            _pass_on(found, self.future)


class _Readable:
    """The readable bytes of one partition of a waiting fetch: `size` bytes from its offset to `bound`.

    Invariant: `position` is the log's grown_bytes if the bound is the log end offset; otherwise None.
    """

    __slots__ = ("_leader_epoch", "_log", "_partition", "_position", "_reads", "_wanted", "bound", "size")

    def __init__(
        self, wanted: FetchPartition, found: FetchedPartition, partition: Partition[Log], reads: PartitionReads
    ) -> None:
        self._wanted = wanted
        self._reads = reads
        self._partition = partition
        self._log = log = partition.log
        self._leader_epoch = partition.leader_epoch
        if wanted.is_of_replica:
            self.bound = log.log_end_offset
        else:
            self.bound = found.last_stable_offset if wanted.is_read_committed else found.high_watermark
        self._position = log.grown_bytes if self.bound == log.log_end_offset else None
        self.size = 0

    def follow(self, partition: Partition[Log] | None) -> bool:
        """Apply a change of the partition; return False if the fetch must be answered in any case."""
        wanted = self._wanted
        log = self._log
        if (
            partition is not self._partition
            or partition.log is not log
            or partition.leader_epoch != self._leader_epoch
            or not partition.may_serve(any_replica=wanted.is_from_any_replica)
            or wanted.offset < log.log_start_offset
        ):
            return False
        bound = wanted.bound(partition)
        if bound == self.bound:
            return True
        if bound < self.bound:  # the log was truncated
            return False
        before = self._position
        self.bound = bound
        self._position = log.grown_bytes if bound == log.log_end_offset else None
        if before is None or self._position is None:
            return self._measure()
        if log.segments.active.base_offset > wanted.offset:
            return False
        size = self.size + self._position - before
        if size > wanted.bytes_max:
            if self.size == 0:
                # One batch is returned even if it exceeds the limit.
                return self._measure()
            size = max(self.size, wanted.bytes_max)
        self.size = size
        return True

    def take(self, found: FetchedPartition, may_wait: bool) -> bool:
        """Apply the result of the first read, whose offset is below the bound; returns as `follow`."""
        records = found.records
        if records is None or not records.size:
            # Other partitions used the byte limit of the fetch, or compaction removed the records.
            return self._measure(may_wait)
        return self._count(records)

    def _measure(self, may_wait: bool = False) -> bool:
        """Read the partition. A read that would wait for the device is left to the answer, which uses other threads."""
        cold: list[ColdRead] | None = None if may_wait else []
        found = self._reads.read_one(self._wanted, self._wanted.bytes_max, True, cold)
        if cold or found.error_code:
            return False
        if found.records is None or not found.records.size:
            self.size = 0
            return True
        return self._count(found.records)

    def _count(self, records: RecordSlice) -> bool:
        assert isinstance(records, LogSlice)
        following = self._log.segments.base_after(records.first_offset)
        if following is not None and following <= self.bound:
            return False
        # A slice cut at a batch boundary may be smaller than the limit although further records exist.
        is_cut = self._log.end_of_slice(records) < self.bound
        self.size = max(records.size, self._wanted.bytes_max) if is_cut else records.size
        return True


def _pass_on(found: asyncio.Future[Fetched], future: asyncio.Future[Fetched]) -> None:
    """Complete one future as the other; cancelling it cancels the other."""

    def end(_: asyncio.Future[Fetched]) -> None:
        if future.done():
            return
        if found.cancelled():
            future.cancel()
        elif (error := found.exception()) is not None:
            future.set_exception(error)
        else:
            future.set_result(found.result())

    found.add_done_callback(end)
    future.add_done_callback(lambda done: found.cancel() if done.cancelled() else None)


def is_satisfied(fetched: Sequence[FetchedPartition], bytes_min: int) -> bool:
    """Whether a fetch need not wait: a partition has an error or diverges, or the size is sufficient."""
    size = 0
    for partition in fetched:
        if partition.error_code or partition.__class__ is TaggedPartition:
            return True
        size += partition.size
    return size >= bytes_min
