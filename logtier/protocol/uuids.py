"""Topic ids as printed by Kafka's tools: 22 characters of URL-safe base64 (KIP-516)."""

import base64
import binascii
import random
from uuid import UUID

ZERO = UUID(int=0)
#: Reserved by Kafka for the metadata topic of KRaft (Uuid.METADATA_TOPIC_ID).
ONE = UUID(int=1)


def to_text(value: UUID) -> str:
    """Print an id in Kafka's format.

    >>> to_text(UUID("8a1f6a0e-2c1b-4d7e-9f10-aabbccddeeff"))
    'ih9qDiwbTX6fEKq7zN3u_w'
    """
    return base64.urlsafe_b64encode(value.bytes).decode().rstrip("=")


def from_text(text: str) -> UUID:
    """Parse the output of `to_text`.

    Raises:
        ValueError: The text is not an id.

    >>> from_text("ih9qDiwbTX6fEKq7zN3u_w")
    UUID('8a1f6a0e-2c1b-4d7e-9f10-aabbccddeeff')
    >>> from_text("short")
    Traceback (most recent call last):
    ValueError: not a Kafka UUID (22 characters of URL-safe base64): 'short'
    """
    try:
        if len(text) == 22:
            return UUID(bytes=base64.urlsafe_b64decode(text + "=="))
    except (binascii.Error, ValueError):
        pass
    raise ValueError(f"not a Kafka UUID (22 characters of URL-safe base64): {text!r}")


def random_uuid(prng: random.Random) -> UUID:
    """Draw an id that is not reserved and does not look like a command-line option (KAFKA-13150).

    >>> random_uuid(random.Random(7)).version
    4
    """
    while True:
        value = UUID(int=prng.getrandbits(128), version=4)
        if value not in (ZERO, ONE) and not to_text(value).startswith("-"):
            return value
