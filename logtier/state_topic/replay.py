"""What the log of a coordinator's topic says, from the first record to the last."""

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterator

from headwater.logtier.records.batch import Buffer, CorruptRecordsError, Record, RecordBatchHeader, decode_records
from headwater.logtier.state_topic.record_codec import CorruptStateRecordError

logger = logging.getLogger(__name__)


class StateReplay(ABC):
    """The state that one partition's log adds up to, batch by batch.

    Invariant: after the last batch it equals the live state of the coordinator that wrote them. A record that cannot be
    read is logged and passed over: one group's or id's damage must not take the others with it.
    """

    def __init__(self, partition_name: str) -> None:
        self._partition_name = partition_name

    def apply(self, batch: Buffer) -> None:
        """Take in one batch."""
        for _ in self.applying(batch):
            pass

    def applying(self, batch: Buffer) -> Iterator[None]:
        """Take in one batch, record by record: after each, others may have a turn."""
        try:
            header = RecordBatchHeader.parse(batch)
            if header.is_control:
                self._apply_control(header, batch)
                return
            records = decode_records(batch)
        except CorruptRecordsError as error:
            logger.error("%s: a batch cannot be read and is passed over: %s", self._partition_name, error)
            return
        for record in records:
            try:
                self._apply_record(record, header)
            except CorruptStateRecordError as error:
                logger.error("%s: offset %d is passed over: %s", self._partition_name, record.offset, error)
            yield

    @abstractmethod
    def _apply_control(self, header: RecordBatchHeader, batch: Buffer) -> None:
        """Take in a marker; CorruptRecordsError if it is none."""

    @abstractmethod
    def _apply_record(self, record: Record, header: RecordBatchHeader) -> None:
        """Take in one record of the batch with this header; CorruptStateRecordError if it is of no known format."""
