"""What was read of one replica and is not compared yet. Pure."""

from __future__ import annotations

from collections import deque

from headwater.logtier.client.fetch_codec import CompletedFetch
from headwater.verification.replica_comparison import ReplicaBatch, whole_batches


class ReplicaStream:
    """The batches of one replica in the order of offsets, read once its last ones are compared.

    Invariant: `batches` are all batches of the replica between what was taken and `next_offset`.

    Attributes:
        next_offset: Where the next fetch begins.
        log_start_offset: Of the newest answer: retention and DeleteRecords raise it.
        failing_since_s: When the broker first failed to answer as it should, None after an answer.
    """

    def __init__(self, broker: int, offset: int) -> None:
        self.broker = broker
        self.next_offset = offset
        self.log_start_offset = offset
        self.failing_since_s: float | None = None
        self.batches: deque[ReplicaBatch] = deque()

    def feed(self, fetched: CompletedFetch, *, is_compacted: bool = False) -> bool:
        """Take over an answer; return whether it says anything new. CorruptRecordsError.

        Without batches below its watermark a replica of a compacted topic has none there: a cleaner has removed them.
        """
        before = self.next_offset
        self.log_start_offset = max(self.log_start_offset, fetched.log_start_offset)
        if not fetched.error_code:
            for batch in whole_batches(fetched.records):
                if batch.last_offset >= self.next_offset:
                    self.batches.append(batch)
                    self.next_offset = batch.last_offset + 1
            if is_compacted and not len(fetched.records):
                self.next_offset = max(self.next_offset, fetched.high_watermark)
        # Retention has removed what would be read next.
        self.next_offset = max(self.next_offset, self.log_start_offset)
        return self.next_offset > before

    def take(self, start_offset: int, end_offset: int) -> list[ReplicaBatch]:
        """Remove and return the batches that begin before `end_offset`, without those that end before `start_offset`.

        The first batch may begin before `start_offset`: DeleteRecords cuts a log at any offset.
        """
        taken = []
        while self.batches and self.batches[0].base_offset < end_offset:
            batch = self.batches.popleft()
            if batch.last_offset >= start_offset:
                taken.append(batch)
        return taken
