"""What is sent: the parameters that both drivers share."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

LINGER_MS = 5


@dataclass(frozen=True)
class Load:
    """Messages of one produce or consume run.

    Attributes:
        message_bytes: Size of a value; values are random letters, keys are null.
        batch_bytes: `batch.size` of the producer.
        codec: none, gzip, snappy, lz4 or zstd.
        acks: 1 or all.
        replicas: Of each partition, with `min_isr` as min.insync.replicas.
    """

    messages: int = 3_000_000
    message_bytes: int = 200
    partitions: int = 6
    batch_bytes: int = 65_536
    codec: str = "none"
    acks: str = "1"
    replicas: int = 1
    min_isr: int = 1

    def __str__(self) -> str:
        return (
            f"{self.messages:,} messages of {self.message_bytes} bytes, {self.partitions} partitions, "
            f"acks={self.acks}, {self.batch_bytes // 1024} KiB batches, {self.codec}"
        )

    def to_json(self) -> str:
        """For the command line of `load_client`."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Load:
        """What `to_json` gave."""
        return cls(**json.loads(text))
