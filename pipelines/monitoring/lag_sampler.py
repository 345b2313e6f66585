"""Samples the lag of a run's stages behind their topics, periodically and on its own thread.

The lag is the difference between the log end offsets and the committed offsets of a stage's consumer group, as other
Kafka tools compute it. For a partition with unread records, the first one is fetched: its timestamp shows how long it
has been waiting.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

from headwater.logtier.client.cluster import LATEST, ClientConfig, ClusterClient, TopicPartition
from headwater.logtier.client.errors import ClientError
from headwater.logtier.client.fetcher import FetchConfig, read_partition
from headwater.logtier.client.group_offsets import committed_group_offsets
from headwater.logtier.records.batch import HEADER_BYTES, RecordBatchHeader
from headwater.logtier.records.compression import CorruptRecordsError
from headwater.pipelines.monitoring.stage_state import TopicLag

if TYPE_CHECKING:
    from headwater.pipelines.monitoring.progress import StageProgress
    from headwater.pipelines.monitoring.stage_state import StageState
    from headwater.pipelines.monitoring.watching import RunInfo, RunWatch

__all__ = ["LagSampler", "topic_lags"]

logger = logging.getLogger(__name__)

INTERVAL_S: Final = 10.0
REQUEST_MS_MAX: Final = 5_000
# Partitions per sample whose first unread record is fetched: those with the most unread records.
PARTITIONS_FETCHED_MAX: Final = 50
FETCH_BYTES_MAX: Final = 64 << 10
END_S_MAX: Final = 2.0


class LagSampler:
    """A listener that updates the lag in the states of a run's stages, from its own thread."""

    def __init__(self, client: ClientConfig, interval_s: float = INTERVAL_S) -> None:
        self._client = dataclasses.replace(
            client, read_committed=True, api_timeout_ms=REQUEST_MS_MAX, request_timeout_ms=REQUEST_MS_MAX
        )
        self._interval_s = interval_s
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self._is_told = False

    def began(self, info: RunInfo, watch: RunWatch) -> None:
        """Start the thread, if a stage reads topics."""
        pipeline = info.loaded.pipeline
        topics = {
            name: {source.topic for source in pipeline.stage(name).topic_inputs}
            for name in info.stages
            if pipeline.stage(name).topic_inputs
        }
        if topics:
            arguments = (pipeline.pipeline, topics, watch)
            self._thread = threading.Thread(target=self._run, args=arguments, name="lag", daemon=True)
            self._thread.start()

    def changed(self, state: StageState, progress: StageProgress | None) -> None:
        """Does nothing: the thread samples periodically."""

    def ended(self) -> None:
        """End the thread."""
        self._over.set()
        if self._thread is not None:
            self._thread.join(END_S_MAX)

    def _run(self, pipeline: str, topics: Mapping[str, set[str]], watch: RunWatch) -> None:
        with ClusterClient(self._client) as cluster:
            while not self._over.is_set():
                try:
                    for stage, lag in look_up(cluster, pipeline, topics).items():
                        watch.set_lag(stage, lag)
                    self._is_told = False
                except (ClientError, CorruptRecordsError) as error:
                    cluster.close()
                    if not self._is_told:
                        logger.warning("the lag cannot be looked up: %s", error)
                    self._is_told = True
                self._over.wait(self._interval_s)


def look_up(cluster: ClusterClient, pipeline: str, topics: Mapping[str, set[str]]) -> dict[str, dict[str, TopicLag]]:
    """Return the lag of each stage by topic. A stage without committed offsets has no lag. Raises ClientError."""
    groups = {stage: f"{pipeline}.{stage}" for stage in topics}
    found = committed_group_offsets(cluster, list(groups.values()))
    committed = {
        stage: {key: offset for key, offset in found[group].items() if key[0] in topics[stage]}
        for stage, group in groups.items()
    }
    partitions = {topic: cluster.partitions(topic) for topic in {key[0] for each in committed.values() for key in each}}
    wanted = {(topic, number): LATEST for topic, numbers in partitions.items() for number in numbers}
    ends = cluster.list_offsets(wanted) if wanted else {}
    behind = {
        (key, offset): ends[key] - offset
        for offsets in committed.values()
        for key, offset in offsets.items()
        if ends.get(key, offset) > offset
    }
    times = {}
    for (key, offset), _ in sorted(behind.items(), key=lambda item: -item[1])[:PARTITIONS_FETCHED_MAX]:
        times[key, offset] = _time_of(cluster, key, offset)
    now_ms = time.time_ns() // 1_000_000
    return {stage: topic_lags(offsets, ends, times, now_ms) for stage, offsets in committed.items()}


def topic_lags(
    committed: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
    times_ms: Mapping[tuple[TopicPartition, int], int | None],
    now_ms: int,
) -> dict[str, TopicLag]:
    """Return the lag by topic, from the committed offsets; `times_ms` are the timestamps of the records there.

    A partition without a committed offset counts from its beginning.

    >>> topic_lags({("t", 0): 5, ("t", 1): 2}, {("t", 0): 5, ("t", 1): 9}, {(("t", 1), 2): 1_000}, 4_500)
    {'t': TopicLag(records=7, seconds=3.5)}
    """
    found: dict[str, TopicLag] = {}
    for topic in {topic for topic, _ in committed}:
        records, oldest_ms, is_known = 0, None, True
        for key, end in ends.items():
            if key[0] != topic:
                continue
            offset = committed.get(key, 0)
            if end <= offset:
                continue
            records += end - offset
            at_ms = times_ms.get((key, offset))
            is_known = is_known and at_ms is not None
            if at_ms is not None:
                oldest_ms = at_ms if oldest_ms is None else min(oldest_ms, at_ms)
        if not records:
            found[topic] = TopicLag(0, 0.0)
        else:
            seconds = None if oldest_ms is None or not is_known else max(0.0, (now_ms - oldest_ms) / 1000)
            found[topic] = TopicLag(records, seconds)
    return found


def _time_of(cluster: ClusterClient, key: TopicPartition, offset: int) -> int | None:
    """Return the timestamp of the batch with the first record from an offset on; None if deleted or without timestamp.

    The batch's base timestamp is precise enough, since a batch gathers records that arrive together.
    """
    try:
        for fetched in read_partition(cluster, *key, offset, offset + 1, FetchConfig(FETCH_BYTES_MAX)):
            for header in _headers(fetched.data):
                if header.last_offset >= offset and not header.is_control:
                    at_ms = header.max_timestamp_ms if header.is_log_append_time else header.base_timestamp_ms
                    return at_ms if at_ms >= 0 else None
    except ClientError:
        return None
    return None


def _headers(data: memoryview) -> Iterator[RecordBatchHeader]:
    """Yield the headers of the batches in fetched data, whose last batch may be truncated."""
    position = 0
    while len(data) - position >= HEADER_BYTES:
        header = RecordBatchHeader.parse(data, position)
        yield header
        position += header.size_bytes
