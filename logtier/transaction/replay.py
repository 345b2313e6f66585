"""Replay of a partition of `__transaction_state`: its transactional ids."""

from headwater.logtier.records.batch import Buffer, Record, RecordBatchHeader
from headwater.logtier.state_topic.replay import StateReplay
from headwater.logtier.transaction.metadata import TransactionMetadata
from headwater.logtier.transaction.records import parse_key, parse_value


class TransactionReplay(StateReplay):
    """The transactional ids of one partition. No record holds the epoch before the last bump."""

    def __init__(self, partition_name: str) -> None:
        super().__init__(partition_name)
        self.transactions: dict[str, TransactionMetadata] = {}

    def _apply_control(self, header: RecordBatchHeader, batch: Buffer) -> None:
        """Ignore control records: this topic has no transactional writes."""

    def _apply_record(self, record: Record, header: RecordBatchHeader) -> None:  # noqa: ARG002
        transactional_id = None if record.key is None else parse_key(record.key)
        if transactional_id is None:
            return
        if record.value is None:
            self.transactions.pop(transactional_id, None)
        else:
            self.transactions[transactional_id] = parse_value(record.value)
