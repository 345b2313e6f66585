"""Replays the log of a coordinator's topic."""

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterator

from headwater.logtier.records.batch import Buffer, CorruptRecordsError, Record, RecordBatchHeader, decode_records
from headwater.logtier.state_topic.record_codec import CorruptStateRecordError

logger = logging.getLogger(__name__)


class StateReplay(ABC):
    """The state that results from one partition's log, batch by batch.

    Invariant: after the last batch it equals the live state of the coordinator that wrote the log. An unreadable record
    is logged and skipped: damage of one group or id must not affect others.
    """

    def __init__(self, partition_name: str) -> None:
        self._partition_name = partition_name

    def apply(self, batch: Buffer) -> None:
        """Apply one batch."""
        for _ in self.applying(batch):
            pass

    def applying(self, batch: Buffer) -> Iterator[None]:
        """Apply one batch and yield after each record, so that other tasks may run."""
        try:
            header = RecordBatchHeader.parse(batch)
            if header.is_control:
                self._apply_control(header, batch)
                return
            records = decode_records(batch)
        except CorruptRecordsError as error:
            logger.error("%s: a batch cannot be read and is skipped: %s", self._partition_name, error)
            return
        for record in records:
            try:
                self._apply_record(record, header)
            except CorruptStateRecordError as error:
                logger.error("%s: the record at offset %d is skipped: %s", self._partition_name, record.offset, error)
            yield

    @abstractmethod
    def _apply_control(self, header: RecordBatchHeader, batch: Buffer) -> None:
        """Apply a marker. Raises CorruptRecordsError for another batch."""

    @abstractmethod
    def _apply_record(self, record: Record, header: RecordBatchHeader) -> None:
        """Apply one record of the batch with this header. Raises CorruptStateRecordError for an unknown format."""
