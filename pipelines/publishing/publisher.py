"""Publishes a source into a topic: in one transaction, or in several, each of them once.

The order: the source is opened and its contents make the publish's name; the topic, its schemas and the expressions are
checked; the cluster is asked how far this publish is, which ends every other run of it; the rows are counted. Only then
does a transaction begin, whose records Spark's tasks send (`sinks.exactly_once`). Before it is committed, the source is
looked at again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from headwater.logtier.client.cluster import ClusterClient
from headwater.logtier.client.configs import broker_config, topic_configs
from headwater.logtier.client.errors import ClientError, UnknownTopicError
from headwater.pipelines.datasource.brokers import Brokers, connection_options
from headwater.pipelines.datasource.errors import OptionError
from headwater.pipelines.datasource.options import WriteOptions
from headwater.pipelines.errors import PipelineFailed
from headwater.pipelines.publishing.contents import (
    Contents,
    Records,
    VersionDifference,
    content_name,
    owner_of,
    place_key,
)
from headwater.pipelines.publishing.errors import PublishFailed, PublishRefused
from headwater.pipelines.publishing.opened_source import OpenedSource, open_source
from headwater.pipelines.publishing.progress_marks import (
    LastPublish,
    PublishProgress,
    PublishState,
    batch_of,
    state_of,
    unfinished,
)
from headwater.pipelines.publishing.record_frames import Division, RecordFrames
from headwater.pipelines.publishing.record_identity import records_of
from headwater.pipelines.publishing.row_faults import find_fault
from headwater.pipelines.publishing.transaction_size import DEFAULT_TIMEOUT_MS, parts_needed, rows_limit
from headwater.pipelines.sinks.exactly_once.encoding_check import check_encoding
from headwater.pipelines.sinks.exactly_once.exactly_once_topics import ExactlyOnceTopics, TopicRecords
from headwater.pipelines.spark.spark_errors import first_line

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from headwater.pipelines.publishing.request import PublishRequest
    from headwater.pipelines.publishing.topic_declaration import DeclaredTopic

__all__ = ["OnStep", "PublishWatch", "Published", "no_step", "publish", "source_shown"]

logger = logging.getLogger(__name__)

TIMEOUT_CONFIG: Final = "transaction.max.timeout.ms"
MESSAGE_BYTES_CONFIG: Final = "max.message.bytes"
#: Kafka's default, if the topic's config may not be described.
MESSAGE_BYTES_DEFAULT: Final = 1_048_588
#: A Python worker that was killed, by the kernel for instance, ends the job, and not the publish.
ATTEMPTS_MAX: Final = 3
LOST_WORKER: Final = ("Python worker exited unexpectedly", "Python worker connection", "EOFException")

#: Called at "opened", "checked", and per transaction at "transaction_open", "records_sent", "committed". For tests,
#: which kill the process there.
OnStep = Callable[[str], None]


def no_step(step: str) -> None:
    """Ignore the step."""


class PublishWatch(Protocol):
    """What is told about a publish while it runs."""

    def reading(self, size: int) -> None:
        """Bytes of the source were read for checksums, since the last call."""

    def phase(self, name: str) -> None:
        """Something else begins: `opening`, `checking`, `publishing`."""

    def sending(self, rows: int, part: int, parts: int) -> contextlib.AbstractContextManager[None]:
        """Within the context, a transaction of this many rows is sent."""


@dataclass(frozen=True, slots=True)
class Published:
    """The result of a publish.

    Attributes:
        name: The publish's name, or the id that was given.
        rows: Records of the whole publish.
        transactions: Transactions of the whole publish.
        written: Records that this run has written: 0 if all were there already.
    """

    name: str
    topic: str
    contents: Contents
    rows: int
    transactions: int
    written: int
    by_feed: bool = False

    @property
    def was_there(self) -> bool:
        """Whether an earlier run had published everything."""
        return self.written == 0 and self.rows > 0


def publish(
    spark: SparkSession,
    request: PublishRequest,
    declared: DeclaredTopic,
    brokers: Brokers,
    watching: PublishWatch,
    on_step: OnStep = no_step,
) -> Published:
    """Publish. Raises PublishRefused before anything is written, PublishFailed afterwards."""
    watching.phase("opening")
    try:
        options = WriteOptions.parse(connection_options(brokers))
    except OptionError as error:
        raise PublishRefused(str(error)) from None
    with ClusterClient(options.client) as cluster:
        topic_id = _topic_id(cluster, request.topic)
        source = open_source(spark, declared.loaded, request, watching.reading)
        encoding = declared.encoding(spark, source.rows, brokers)
        frames = RecordFrames(source.rows, source.removed, declared.sink, encoding, request.order_by)
        _check_frames(frames, is_split=request.is_split)
        on_step("opened")
        try:
            run = _Publish(
                request,
                source,
                frames,
                records_of(request, source.rows.schema.json(), encoding, topic_id),
                options,
                cluster,
            )
        except ClientError as error:
            raise PublishFailed(str(error)) from None
        with contextlib.closing(run), _told(run.label):
            return run.run(watching, on_step)


class _Publish:
    """One run of a publish. `close` ends its connections."""

    def __init__(
        self,
        request: PublishRequest,
        source: OpenedSource,
        frames: RecordFrames,
        records: Records,
        options: WriteOptions,
        cluster: ClusterClient,
    ) -> None:
        self._request = request
        self._source = source
        self._frames = frames
        self._options = options
        self._cluster = cluster
        self._topic_id = records.topic_id
        self._name = content_name(source.contents, records)
        self._owner = owner_of(self._name, request.given_id, request.topic)
        self._place = place_key(request.path, records.topic_id)
        timeout = broker_config(cluster, TIMEOUT_CONFIG)
        self._timeout_ms = int(timeout) if timeout is not None else DEFAULT_TIMEOUT_MS
        found = topic_configs(cluster, [request.topic], MESSAGE_BYTES_CONFIG)
        self._message_bytes_max = int(found.get(request.topic, MESSAGE_BYTES_DEFAULT))
        self._topics = self._writer()

    @property
    def label(self) -> str:
        """The publish in messages."""
        return self._owner.label

    def _writer(self) -> ExactlyOnceTopics:
        return ExactlyOnceTopics(self._options, self._owner, transaction_timeout_ms=self._timeout_ms)

    def close(self) -> None:
        """Close the connections."""
        self._topics.close()

    def run(self, watching: PublishWatch, on_step: OnStep) -> Published:
        """Write what is missing."""
        progress = state_of(self._topics.last_written(), self._name, self._request.given_id)
        if progress.state is PublishState.FINISHED:
            return self._published(progress.rows, progress.parts, 0)
        if progress.state is PublishState.BEGIN:
            self._refuse_interrupted()
        watching.phase("checking")
        division, parts = self._division(progress)
        if parts > 1:
            # A row that does not fit must be found before the first transaction is committed.
            for part in range(progress.done, parts):
                with self._misfits_named():
                    self._encode_only(self._frames.records(part, parts))
        on_step("checked")
        watching.phase("publishing")
        written = 0
        for part in range(progress.done, parts):
            with watching.sending(division.counts[part], part, parts):
                self._write(part, parts, division, on_step)
            written += division.counts[part]
        return self._published(division.rows, parts, written)

    def _published(self, rows: int, parts: int, written: int) -> Published:
        return Published(
            self._request.given_id or self._name,
            self._request.topic,
            self._source.contents,
            rows,
            parts,
            written,
            self._source.by_feed,
        )

    def _refuse_interrupted(self) -> None:
        """Refuse to begin if the last publish from this path is incomplete, unless the user gives it up.

        It may still run, so nothing is done to it before the user says so.
        """
        found = self._topics.mark(self._place)
        other = unfinished(
            LastPublish.decode(found.committed), LastPublish.decode(found.undecided), self._owner.transactional_id
        )
        if other is None:
            return
        if self._request.abandons:
            self._end(other.publish)
            return
        before = f"{other.done} of its {other.publish.parts} transactions are in {self._request.topic}"
        if other.is_open:
            raise PublishRefused(
                f"another publish of {self._request.path} has a transaction open, and {before}: it is running, or was "
                f"ended less than {self._timeout_ms // 1000} s ago. Wait for it or repeat it, or end it and give it "
                "up by --abandon"
            )
        raise PublishRefused(
            f"{self._request.path} or the way in which it is published has changed since a publish of it was "
            f"interrupted, or it runs under another --id: {before}. Bring the former contents and options back and "
            "repeat it, or give it up by --abandon"
        )

    def _end(self, other: LastPublish) -> None:
        """End a publish that is given up, should it still run: it must not write its further transactions."""
        owner = dataclasses.replace(self._owner, transactional_id=other.transactional_id)
        with contextlib.closing(ExactlyOnceTopics(self._options, owner, transaction_timeout_ms=self._timeout_ms)) as it:
            it.last_written()
        logger.warning("%s: the unfinished publish %s was ended", self.label, other.transactional_id)

    def _division(self, progress: PublishProgress) -> tuple[Division, int]:
        """The records of each transaction, and their number, which a publish that continues keeps."""
        with self._misfits_named():
            if progress.state is PublishState.CONTINUE:
                parts = progress.parts
                division = self._frames.division(parts)
                if division.digest != progress.division or division.rows != progress.rows:
                    raise PublishRefused(
                        f"the {division.rows:,} rows are divided otherwise than the {progress.rows:,} were when this "
                        f"publish began, of which {progress.done} of {parts} transactions are written: the key gives "
                        "other results now; give this publish up by --abandon and --id with another name"
                    )
                return division, parts
            whole = self._frames.division(1)
            limit = rows_limit(whole.rows, self._source.size, self._timeout_ms, self._request.transaction_rows)
            parts = parts_needed(whole.rows, limit, is_split=self._request.is_split, timeout_ms=self._timeout_ms)
            return (self._frames.division(parts) if parts > 1 else whole), parts

    def _write(self, part: int, parts: int, division: Division, on_step: OnStep) -> None:
        batch = batch_of(self._name, part, parts, division.rows, division.digest)
        mark = LastPublish(self._name, self._owner.transactional_id, part, parts)
        output = TopicRecords(
            self._request.topic,
            self._frames.records(part, parts),
            division.counts[part],
            self._request.compression,
            self._message_bytes_max,
        )

        def stepped(step: str) -> None:
            on_step(step)
            if step == "records_sent":
                self._require_unchanged()

        for attempt in range(1, ATTEMPTS_MAX + 1):
            try:
                with self._misfits_named():
                    self._topics.write(batch, [output], {}, stepped, {self._place: mark.encode()})
            except _WorkerLost as lost:
                if attempt == ATTEMPTS_MAX:
                    raise PublishFailed(f"{lost}; nothing of this transaction can be read") from None
                logger.warning("%s: %s; attempt %d of %d", self.label, lost, attempt, ATTEMPTS_MAX)
            else:
                return

    def _require_unchanged(self) -> None:
        """Refuse to commit if the source is another now, or the topic. Raises PublishFailed."""
        if changed := self._source.changed():
            raise PublishFailed(f"{self._request.path}: {changed} while it was published; nothing was committed")
        try:
            topic_id = _topic_id(self._cluster, self._request.topic)
        except PublishRefused as error:
            raise PublishFailed(f"{error}; nothing was committed") from None
        if topic_id != self._topic_id:
            raise PublishFailed(
                f"the topic {self._request.topic} was made anew while it was published to; nothing was committed"
            )

    def _encode_only(self, records: DataFrame) -> None:
        check_encoding(records, self._request.compression, self._options.batch_bytes, self._message_bytes_max)

    @contextlib.contextmanager
    def _misfits_named(self) -> Iterator[None]:
        """Name the row that a task could not encode."""
        from py4j.protocol import Py4JJavaError
        from pyspark.errors import PySparkException

        try:
            yield
        except (PySparkException, Py4JJavaError) as error:  # a lost worker's is of the second kind
            if any(text in str(error) for text in LOST_WORKER):
                raise _WorkerLost("a Python worker of Spark ended unexpectedly") from None
            fault = None
            if self._frames.removed is None:
                fault = find_fault(
                    self._frames.rows,
                    self._source.file_column,
                    lambda rows: self._encode_only(self._frames.records_of(rows)),
                )
            raise PublishFailed(str(fault) if fault else f"a row cannot be written: {first_line(error)}") from None


class _WorkerLost(Exception):  # noqa: N818 - it names a finding
    """A worker process has ended while it worked."""


def _topic_id(cluster: ClusterClient, topic: str) -> str:
    try:
        cluster.partitions(topic)
    except UnknownTopicError as error:
        raise PublishRefused(str(error)) from None
    except ClientError as error:
        raise PublishFailed(str(error)) from None
    return str(cluster.topic_id(topic))


def _check_frames(frames: RecordFrames, *, is_split: bool) -> None:
    """Refuse what can be known to fail. Raises PublishRefused."""
    from pyspark.errors import PySparkException

    try:
        frames.records().schema  # noqa: B018 - analysed here, with --order-by
        changing = frames.changing_key() if is_split else None
    except PySparkException as error:
        raise PublishRefused(f"Spark refuses an expression: {first_line(error)}") from None
    if changing is not None:
        raise PublishRefused(
            f"--key {frames.sink.key}: {changing} gives other results in each run, and a split publish that was "
            "interrupted would continue with other rows; make the key of the rows' own columns"
        )
    if frames.sink.key is None and frames.has_removed():
        raise PublishRefused("the later version lacks rows of the earlier: only --key can say which records they were")
    if frames.removed_without_key():
        raise PublishRefused("the key of a removed row is null, so no tombstone can be written for it")


@contextlib.contextmanager
def _told(label: str) -> Iterator[None]:
    """Convert the sink's failures, which name the publish already."""
    try:
        yield
    except PipelineFailed as error:
        raise PublishFailed(str(error)) from None
    except ClientError as error:
        raise PublishFailed(f"{label}: {error}") from None
    except (PublishFailed, _WorkerLost) as error:
        raise PublishFailed(f"{label}: {error}") from None


def source_shown(published: Published) -> str:
    """The source's contents in a few words, with how a difference was read."""
    shown = published.contents.shown()
    if isinstance(published.contents, VersionDifference):
        return f"{shown}, by {'the change data feed' if published.by_feed else 'comparison'}"
    return shown
