"""Names of the folders in a log folder: logs, future logs (copies from another disk), deleted logs. Pure."""

import random
import re
import uuid
from typing import Final, NamedTuple

from headwater.logtier.protocol.topic_partition import TopicPartition

FILE_NAME_BYTES_MAX: Final = 255
_DELETED_SUFFIX: Final = "-delete"
_STRAY_SUFFIX: Final = "-stray"
_FUTURE_SUFFIX: Final = "-future"
_LOG: Final = re.compile(r"([a-zA-Z0-9._-]{1,249})-(\d{1,10})")
_FUTURE: Final = re.compile(r"([a-zA-Z0-9._-]{1,249})-(\d{1,10})\.[0-9a-f]{32}-future")
_DELETED: Final = re.compile(r".+\.[0-9a-f]{32}-delete")
_STRAY: Final = re.compile(r".+\.[0-9a-f]{32}-stray")


class LogFolder(NamedTuple):
    """Content of a folder's name; a deleted log has no partition."""

    topic_partition: TopicPartition | None
    is_future: bool = False

    @property
    def is_deleted(self) -> bool:
        """Whether the folder belongs to a deleted log."""
        return self.topic_partition is None


def parse_folder(name: str) -> LogFolder | None:
    """Parse a folder's name; None if it is not the folder of a log.

    >>> parse_folder("flights-3")
    LogFolder(topic_partition=TopicPartition(topic='flights', partition=3), is_future=False)
    >>> parse_folder("flights-3." + "0" * 32 + "-future").is_future
    True
    >>> parse_folder("flights-3." + "0" * 32 + "-delete").is_deleted, parse_folder("lost+found")
    (True, None)
    """
    if _DELETED.fullmatch(name):
        return LogFolder(None)
    future = _FUTURE.fullmatch(name)
    match = future or _LOG.fullmatch(name)
    if match is None:
        return None
    return LogFolder(TopicPartition(match[1], int(match[2])), future is not None)


def is_broker_folder(name: str) -> bool:
    """Whether a folder in a log folder belongs to the broker: a log, or one that is set aside.

    >>> [is_broker_folder(name) for name in ("flights-3", "flights-3." + "0" * 32 + "-stray", "lost+found")]
    [True, True, False]
    """
    return parse_folder(name) is not None or _STRAY.fullmatch(name) is not None


def deleted_folder_name(topic_partition: TopicPartition, prng: random.Random) -> str:
    """Name the folder of a deleted log; the topic name is truncated to the limit of file names."""
    return _aside(topic_partition, prng, _DELETED_SUFFIX)


def stray_folder_name(topic_partition: TopicPartition, prng: random.Random) -> str:
    """Name the folder of a log without a topic; the broker neither opens nor removes it.

    >>> parse_folder(stray_folder_name(TopicPartition("flights", 3), random.Random(1))) is None
    True
    """
    return _aside(topic_partition, prng, _STRAY_SUFFIX)


def _aside(topic_partition: TopicPartition, prng: random.Random, kind: str) -> str:
    suffix = f".{_unique(prng)}{kind}"
    return f"{str(topic_partition)[: FILE_NAME_BYTES_MAX - len(suffix)]}{suffix}"


def future_folder_name(topic_partition: TopicPartition, prng: random.Random) -> str:
    """Name the folder of a log being copied from another disk; the name may exceed the limit of file names."""
    return f"{topic_partition}.{_unique(prng)}{_FUTURE_SUFFIX}"


def _unique(prng: random.Random) -> str:
    return uuid.UUID(int=prng.getrandbits(128), version=4).hex
