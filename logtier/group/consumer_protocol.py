"""The one look into the opaque metadata that the broker allows itself: which topics a consumer subscribes to.

Every version of the consumer protocol's subscription begins as version 0 does (int16 version, array of topic names), so
this reads versions that do not exist yet. Offset expiry and OffsetDelete need it to spare topics that are in use.
"""

import struct
from collections.abc import Iterable

PROTOCOL_TYPE = "consumer"

_HEADER = struct.Struct(">hi")
_LENGTH = struct.Struct(">h")


def subscribed_topics(subscription: bytes) -> frozenset[str] | None:
    """The topics of one ConsumerProtocolSubscription; None if the bytes are none.

    >>> sorted(subscribed_topics(bytes.fromhex("0003 00000001 0001 74 ffffffff")))
    ['t']
    >>> subscribed_topics(b"anything else") is None
    True
    """
    try:
        version, count = _HEADER.unpack_from(subscription)
        if version < 0 or not 0 <= count <= len(subscription):
            return None
        position = _HEADER.size
        topics = []
        for _ in range(count):
            (length,) = _LENGTH.unpack_from(subscription, position)
            position += _LENGTH.size
            end = position + length
            if length < 0 or end > len(subscription):
                return None
            topics.append(subscription[position:end].decode())
            position = end
        return frozenset(topics)
    except (struct.error, UnicodeDecodeError):
        return None


def all_subscribed_topics(subscriptions: Iterable[bytes]) -> frozenset[str] | None:
    """The topics of all members together; None as soon as one of them cannot be read."""
    topics: set[str] = set()
    for subscription in subscriptions:
        found = subscribed_topics(subscription)
        if found is None:
            return None
        topics |= found
    return frozenset(topics)
