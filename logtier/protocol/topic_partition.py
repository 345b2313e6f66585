"""The name of one partition."""

from typing import NamedTuple


class TopicPartition(NamedTuple):
    """A topic's partition, as it is named in logs, on disk and in errors.

    >>> str(TopicPartition("flights", 3))
    'flights-3'
    """

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"
