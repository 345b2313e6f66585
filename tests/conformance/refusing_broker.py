"""`headwater` that refuses some batches of each idempotent producer once, as if it led only a moment later."""

from __future__ import annotations

import sys
from functools import wraps
from typing import Any

from headwater.cli.main import main
from headwater.logtier.protocol.errors import ErrorCode, KafkaError
from headwater.logtier.protocol.topic_partition import TopicPartition
from headwater.logtier.records.awaited_batches import BatchSequence, sequence_of
from headwater.logtier.replication.replica_manager import ReplicaManager

#: The first batch of a producer, and one of a producer that the log knows.
REFUSED_SEQUENCES = (0, 7)

#: Begins a line of the broker's output for each of them.
REFUSED = "refused once:"


def refuse_once() -> None:
    """Let the append of these batches fail at the first attempt."""
    append = ReplicaManager.append
    refused: set[tuple[TopicPartition, BatchSequence]] = set()

    @wraps(append)
    def refusing(self: ReplicaManager, topic_partition: TopicPartition, records: Any, **named: Any) -> Any:
        batch = sequence_of(records)
        if batch is not None and batch.base_sequence in REFUSED_SEQUENCES and (topic_partition, batch) not in refused:
            refused.add((topic_partition, batch))
            # The broker's log has only the first rejections of a client.
            print(REFUSED, topic_partition, batch.base_sequence, flush=True)
            raise KafkaError(ErrorCode.not_leader_or_follower, "not yet")
        return append(self, topic_partition, records, **named)

    ReplicaManager.append = refusing  # type: ignore[method-assign]


if __name__ == "__main__":
    refuse_once()
    sys.exit(main(sys.argv[1:]))
