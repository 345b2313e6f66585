"""Kafka's default partitioner: a key's partition is the same as for Kafka's Java client."""

from __future__ import annotations

__all__ = ["murmur2", "partition_for_key"]

_M = 0x5BD1E995
_MASK = 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    """Returns Murmur2 with the seed of Kafka's Java client (0x9747b28c), as an unsigned 32-bit number.

    The examples are from Kafka's UtilsTest.

    >>> [murmur2(key) - (murmur2(key) >> 31 << 32) for key in (b"21", b"foobar", b"a-little-bit-long-string")]
    [-973932308, -790332482, -985981536]
    >>> murmur2(b""), murmur2(b"a-little-bit-longer-string") - 2**32
    (275646681, -1486304829)
    """
    length = len(data)
    h = (0x9747B28C ^ length) & _MASK
    end = length & ~3
    for position in range(0, end, 4):
        k = int.from_bytes(data[position : position + 4], "little")
        k = (k * _M) & _MASK
        k ^= k >> 24
        k = (k * _M) & _MASK
        h = (h * _M) & _MASK
        h ^= k
    rest = data[end:]
    if rest:
        h ^= int.from_bytes(rest, "little")
        h = (h * _M) & _MASK
    h ^= h >> 13
    h = (h * _M) & _MASK
    return h ^ (h >> 15)


def partition_for_key(key: bytes, partition_count: int) -> int:
    """Returns the partition of a key, as chosen by the Java client's default partitioner.

    >>> partition_for_key(b"foobar", 6)
    0
    """
    return (murmur2(key) & 0x7FFFFFFF) % partition_count
