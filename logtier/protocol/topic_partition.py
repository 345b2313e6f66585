"""The identifier of a partition."""

from typing import NamedTuple


class TopicPartition(NamedTuple):
    """A topic's partition, printed as in logs, on disk and in errors.

    >>> str(TopicPartition("flights", 3))
    'flights-3'
    """

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"
