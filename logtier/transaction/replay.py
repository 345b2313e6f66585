"""What the log of `__transaction_state` says: the transactional ids, from the first record to the last."""

import logging

from logtier.records.batch import Buffer, CorruptRecordsError, Record, RecordBatchHeader, decode_records
from logtier.transaction.metadata import TransactionMetadata
from logtier.transaction.records import CorruptTransactionRecordError, parse_key, parse_value

logger = logging.getLogger(__name__)


class Replay:
    """The state that one partition's log adds up to, batch by batch.

    Invariant: after the last batch it equals the live state of the coordinator that wrote them, but for the epoch
    before the last bump. A record that cannot be read is logged and passed over: one id's damage must not take the
    others with it.
    """

    def __init__(self, partition_name: str) -> None:
        self.transactions: dict[str, TransactionMetadata] = {}
        self._partition_name = partition_name

    def apply(self, batch: Buffer) -> None:
        """Take in one batch."""
        try:
            if RecordBatchHeader.parse(batch).is_control:
                return
            records = decode_records(batch)
        except CorruptRecordsError as error:
            logger.error("%s: a batch cannot be read and is passed over: %s", self._partition_name, error)
            return
        for record in records:
            try:
                self._apply_record(record)
            except CorruptTransactionRecordError as error:
                logger.error("%s: offset %d is passed over: %s", self._partition_name, record.offset, error)

    def _apply_record(self, record: Record) -> None:
        transactional_id = None if record.key is None else parse_key(record.key)
        if transactional_id is None:
            return
        if record.value is None:
            self.transactions.pop(transactional_id, None)
        else:
            self.transactions[transactional_id] = parse_value(record.value)
