"""The exactly-once topic sink: all topic records of a micro-batch in one transaction.

For each batch: begin, write the fence (see `exactly_once_fence`), let Spark's tasks send the records of all topics,
including dead letters, commit the source offsets for the stage's consumer group, commit. After any failure the
transaction is aborted and a new epoch requested; a batch with tasks that ran more than once is written again. A batch
whose fence is already committed is skipped.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from headwater.logtier.client.cluster import EARLIEST, LATEST, ClusterClient, TopicPartition
from headwater.logtier.client.errors import (
    AbortableTransactionError,
    ClientError,
    ProducerFencedError,
    UnknownTopicError,
)
from headwater.logtier.client.fetcher import FetchConfig, read_partition
from headwater.logtier.client.partitioner import partition_for_key
from headwater.logtier.client.topics import ensure_topic
from headwater.logtier.client.transactional_producer import (
    TRANSACTION_TIMEOUT_MS,
    TransactionalProducer,
    TransactionConfig,
)
from headwater.logtier.records.batch import Buffer, Record
from headwater.logtier.records.compression import CODECS
from headwater.pipelines.datasource.options import WriteOptions
from headwater.pipelines.errors import PipelineFailed
from headwater.pipelines.sinks.exactly_once.encoded_batches import ENCODED_DDL, folder_for_encoded
from headwater.pipelines.sinks.exactly_once.exactly_once_fence import (
    FENCES_CONFIGS,
    FENCES_PARTITIONS,
    FENCES_TOPIC,
    Batch,
    CheckpointMismatch,
    Fence,
    LatestValues,
    Step,
    TransactionOwner,
    latest_committed,
    latest_values,
    next_step,
)
from headwater.pipelines.sinks.exactly_once.exactly_once_tasks import REPORT_DDL, Encode, Send, encoding, sending
from headwater.pipelines.sinks.exactly_once.exactly_once_verdict import StageAttempt, TaskReport, Todo, Verdict, judge
from headwater.pipelines.spark.session_settings import settings_for_a_job

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["ExactlyOnceTopics", "OnStep", "TopicRecords"]

logger = logging.getLogger(__name__)

# Attempts to write a batch before its stage fails. The second covers an occasional task failure.
ATTEMPTS_MAX: Final = 4
# Spark's status tracker shows the end of a stage shortly after its result arrives.
STATUS_WAIT_S: Final = 10.0
_STATUS_POLL_S: Final = 0.005
# A topic that is missing for this long does not exist.
TOPIC_WAIT_S: Final = 10.0
_TOPIC_POLL_S: Final = 0.1
# Per task: small, so that the task sends while Spark passes the next batches.
SEND_BUFFER_BYTES: Final = 2 << 20
# What Spark hands to a task at once. Of its default, 64 MiB, every piece is new memory on both sides of the pipe, and
# the task waits for the whole of it; with a few record batches at a time the sink is a fifth faster.
HANDED_BYTES_CONF: Final = "spark.sql.execution.arrow.maxBytesPerBatch"
HANDED_BYTES: Final = 512 << 10

OnStep = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class TopicRecords:
    """Records for a topic: rows with key and value, and optionally headers and timestamp_ms; and their number.

    `compression` is a name of `headwater.logtier.records.compression.CODECS`. A record that takes more than
    `message_bytes_max` is an error of the task that encodes it; otherwise the broker refuses it.
    """

    topic: str
    records: DataFrame
    count: int
    compression: str = "none"
    message_bytes_max: int | None = None


class ExactlyOnceTopics:
    """Writes the batches of one owner, such as a stage. For use by one thread; call `close` at the end.

    Two writers of the same owner fence each other: the later continues, the earlier ends with PipelineFailed.
    """

    def __init__(
        self,
        options: WriteOptions,
        owner: TransactionOwner,
        *,
        transaction_timeout_ms: int = TRANSACTION_TIMEOUT_MS,
        after_send: Callable[[int, bool], None] | None = None,
    ) -> None:
        self._options = options
        self._owner = owner
        self._timeout_ms = transaction_timeout_ms
        self._after_send = after_send
        # The fence's partition is read with its control batches, which a read_committed reader would not return.
        self._cluster = ClusterClient(dataclasses.replace(options.client, read_committed=False))
        self._producer = TransactionalProducer(
            self._cluster,
            TransactionConfig(owner.transactional_id, transaction_timeout_ms, options.client.request_timeout_ms),
        )
        self._is_taken_over = False
        self._fence: Fence | None = None

    @property
    def transaction_version(self) -> int:
        """The cluster's finalized level of `transaction.version`."""
        return self._producer.transaction_version

    def close(self) -> None:
        """Close the connections. The stage's next run, or the timeout, ends an open transaction."""
        self._cluster.close()

    def step(self, batch: Batch) -> Step:
        """Whether to write the batch or to skip it as already written. The first call fences earlier runs."""
        with self._told():
            self._take_over()
            try:
                return next_step(self._fence, batch)
            except CheckpointMismatch as mismatch:
                raise PipelineFailed(f"{self._owner.label}: {mismatch}") from None

    def last_written(self) -> Batch | None:
        """The owner's last committed batch. The first call fences earlier runs."""
        with self._told():
            self._take_over()
        return None if self._fence is None else self._fence.batch

    def mark(self, key: bytes) -> LatestValues:
        """The last values of another key in the topic of fences, which `write` stored with a batch.

        Other owners that write under this key are not disturbed.
        """
        with self._told():
            self._take_over()
            where = (FENCES_TOPIC, self._fences_partition(key))
            with ClusterClient(dataclasses.replace(self._options.client, read_committed=True)) as committed:
                stable_offset = committed.list_offsets({where: LATEST})[where]
            return latest_values(self._fences(key), key, stable_offset)

    def write(
        self,
        batch: Batch,
        outputs: Sequence[TopicRecords],
        source_offsets: Mapping[TopicPartition, int],
        on_step: OnStep = lambda name: None,  # noqa: ARG005 - the default does nothing
        marks: Mapping[bytes, bytes] | None = None,
    ) -> None:
        """Write a batch for which `step` returned WRITE; returns after the commit.

        `on_step` is called with "transaction_open", "records_sent" and "committed"; what it raises before the commit
        aborts the transaction. `marks` are further records of the topic of fences, by key.
        """
        assert self._is_taken_over, "ask `step` first"
        with self._told():
            for attempt in range(1, ATTEMPTS_MAX + 1):
                verdict = self._attempt(batch, outputs, source_offsets, on_step, marks or {})
                if verdict.todo is Todo.COMMIT:
                    self._fence = Fence(batch)
                    return
                if verdict.todo is Todo.FENCED:
                    raise PipelineFailed(self._fenced())
                if verdict.todo is Todo.FAIL:
                    raise PipelineFailed(f"{self._owner.label}: {self._owner.unit} {batch.number}: {verdict.reason}")
                logger.warning(
                    "%s: %s %d was aborted (%s), attempt %d of %d",
                    self._owner.label,
                    self._owner.unit,
                    batch.number,
                    verdict.reason,
                    attempt,
                    ATTEMPTS_MAX,
                )
        raise PipelineFailed(
            f"{self._owner.label}: {self._owner.unit} {batch.number} was aborted {ATTEMPTS_MAX} times, the last time "
            f"because {verdict.reason}; nothing of it can be read"
        )

    # -- taking over -------------------------------------------------------------------------------------------------

    def _take_over(self) -> None:
        if self._is_taken_over:
            return
        ensure_topic(self._cluster, FENCES_TOPIC, partitions=FENCES_PARTITIONS, configs=FENCES_CONFIGS)
        self._producer.initialise()
        value = self._committed(self._owner.transactional_id.encode())
        try:
            self._fence = None if value is None else Fence.decode(value)
        except CheckpointMismatch as mismatch:
            raise PipelineFailed(f"{self._owner.label}: {mismatch}") from None
        self._is_taken_over = True

    def _committed(self, key: bytes) -> bytes | None:
        return latest_committed(self._fences(key), key)

    def _fences(self, key: bytes) -> Iterator[Buffer]:
        """The record batches of a key's partition."""
        where = (FENCES_TOPIC, self._fences_partition(key))
        start = self._cluster.list_offsets({where: EARLIEST})[where]
        end = self._cluster.list_offsets({where: LATEST})[where]
        fetched = read_partition(self._cluster, *where, start, end, FetchConfig()) if end > start else iter(())
        return (records.data for records in fetched)

    def _fences_partition(self, key: bytes) -> int:
        return partition_for_key(key, len(self._partitions(FENCES_TOPIC)))

    def _partitions(self, topic: str) -> list[int]:
        """The partitions of a topic. Retries, since not every broker knows a new topic at once."""
        deadline_s = time.monotonic() + TOPIC_WAIT_S
        while True:
            try:
                return self._cluster.partitions(topic)
            except UnknownTopicError:
                if time.monotonic() > deadline_s:
                    raise
                time.sleep(_TOPIC_POLL_S)

    # -- one attempt -------------------------------------------------------------------------------------------------

    def _attempt(
        self,
        batch: Batch,
        outputs: Sequence[TopicRecords],
        source_offsets: Mapping[TopicPartition, int],
        on_step: OnStep,
        marks: Mapping[bytes, bytes],
    ) -> Verdict:
        targets = [
            (topic, partition)
            for topic in dict.fromkeys(output.topic for output in outputs)
            for partition in self._partitions(topic)
        ]
        try:
            try:
                fences = self._fence_records(batch, marks)
                self._producer.abort()  # an attempt before may have failed to
                self._producer.begin([*targets, *((FENCES_TOPIC, partition) for partition in fences)])
                for partition, records in fences.items():
                    self._producer.send(FENCES_TOPIC, partition, records)
                on_step("transaction_open")
                verdict = self._send(outputs, targets)
                on_step("records_sent")
                if verdict.todo is Todo.COMMIT:
                    self._producer.commit_offsets(self._owner.group, source_offsets, f"batch={batch.number}")
                    self._producer.commit()
                    on_step("committed")
                    return verdict
            except AbortableTransactionError as error:
                verdict = Verdict(Todo.REDO, str(error))
            self._producer.abort()
        except BaseException:
            # The next run would abort the transaction, too; but until then read_committed readers would be blocked.
            with contextlib.suppress(ClientError):
                self._producer.abort()
            raise
        return verdict

    def _fence_records(self, batch: Batch, marks: Mapping[bytes, bytes]) -> dict[int, list[Record]]:
        """The fence and further marks, by partition of their topic."""
        now_ms = int(time.time() * 1000)
        found: dict[int, list[Record]] = {}
        for key, value in {self._owner.transactional_id.encode(): Fence(batch).encode(), **marks}.items():
            found.setdefault(self._fences_partition(key), []).append(Record(key, value, now_ms))
        return found

    def _send(self, outputs: Sequence[TopicRecords], targets: Sequence[TopicPartition]) -> Verdict:
        if not outputs:
            return Verdict(Todo.COMMIT)
        send = Send(
            self._options.client,
            dataclasses.replace(self._options.producer, buffer_bytes=SEND_BUFFER_BYTES),
            self._producer.identity,
            self._producer.first_sequences,
            tuple(targets),
            self._after_send,
        )
        spark = outputs[0].records.sparkSession
        with folder_for_encoded(spark) as folder:
            sent = (
                self._encoded(outputs, targets, folder)
                .repartitionById(len(targets), "target")
                .sortWithinPartitions("task", "number")
                .mapInArrow(sending(send), REPORT_DDL)
            )
            with settings_for_a_job(spark, {HANDED_BYTES_CONF: str(HANDED_BYTES)}):
                rows = sent.collect()
        reports = [TaskReport(**row.asDict()) for row in rows]
        stage = _stage_attempt(spark, reports[0].stage_id) if reports else None
        expected: dict[str, int] = {}
        for output in outputs:
            expected[output.topic] = expected.get(output.topic, 0) + output.count
        verdict = judge(reports, stage, [topic for topic, _ in targets], expected)
        if verdict.todo is Todo.COMMIT:
            self._producer.note_sequences({targets[report.target]: report.next_sequence for report in reports})
        return verdict

    def _encoded(
        self, outputs: Sequence[TopicRecords], targets: Sequence[TopicPartition], folder: str | None
    ) -> DataFrame:
        """The encoding pass over all outputs as one frame, so that one job sends them."""
        frames = []
        for output in outputs:
            partitions = [number for number, (topic, _) in enumerate(targets) if topic == output.topic]
            codec = CODECS[output.compression]
            bytes_max = output.message_bytes_max
            batch_bytes = self._options.batch_bytes if bytes_max is None else min(self._options.batch_bytes, bytes_max)
            encode = Encode(partitions[0], len(partitions), codec, batch_bytes, folder, bytes_max)
            frames.append(output.records.mapInArrow(encoding(encode), ENCODED_DDL))
        encoded = frames[0]
        for frame in frames[1:]:
            encoded = encoded.unionAll(frame)
        return encoded

    # -- failures ----------------------------------------------------------------------------------------------------

    def _fenced(self) -> str:
        return (
            f"{self._owner.label}: another run of it has taken over (transactional id {self._owner.transactional_id}), "
            f"or a transaction took longer than {self._timeout_ms // 1000} s; nothing of the present "
            f"{self._owner.unit} can be read"
        )

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except ProducerFencedError as error:
            raise PipelineFailed(self._fenced()) from error
        except ClientError as error:
            raise PipelineFailed(f"{self._owner.label}: {error}") from error


def _stage_attempt(spark: SparkSession, stage_id: int) -> StageAttempt:
    """The status tracker's data of a stage, after the tracker has caught up with the result."""
    tracker = spark.sparkContext.statusTracker()
    deadline_s = time.monotonic() + STATUS_WAIT_S
    while True:
        info = tracker.getStageInfo(stage_id)
        found = StageAttempt(0, 0, 0, 0)
        if info is not None:
            found = StageAttempt(info.currentAttemptId, info.numTasks, info.numCompletedTasks, info.numFailedTasks)
        if found.is_known or time.monotonic() > deadline_s:
            return found
        time.sleep(_STATUS_POLL_S)
