"""The principal of a forwarded request, in the format of Kafka's DefaultPrincipalData, version 0 (KIP-590)."""

import struct
from typing import Final

from headwater.logtier.protocol.wire import compact_string, read_unsigned_varint, skip_tagged_fields

_VERSION: Final = struct.Struct(">h")
_VERSIONS: Final = (0, 0)
_NAME_BYTES_MAX: Final = 32_767
"""As much as a short string can hold: names come from certificates, tokens and logins."""


def serialize_principal(principal: str) -> bytes:
    r"""Encode a principal: version, type, name, and whether a delegation token authenticated it, which none does.

    >>> serialize_principal("User:al")
    b'\x00\x00\x05User\x03al\x00\x00'
    """
    kind, _, name = principal.partition(":")
    return _VERSION.pack(0) + compact_string(kind) + compact_string(name) + b"\0\0"


def deserialize_principal(data: bytes) -> str:
    """Decode a principal.

    Raises:
        ValueError: The data is something else, or of another version.

    >>> deserialize_principal(serialize_principal("User:CN=a:b,O=ä"))
    'User:CN=a:b,O=ä'
    """
    try:
        (version,) = _VERSION.unpack_from(data)
        if not _VERSIONS[0] <= version <= _VERSIONS[1]:
            raise ValueError(f"version {version} of a principal is unknown")
        kind, position = _string(data, _VERSION.size)
        name, position = _string(data, position)
        if data[position] not in (0, 1) or skip_tagged_fields(data, position + 1) != len(data):
            raise ValueError("the principal has no end")
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise ValueError(f"the principal cannot be read: {error}") from None
    if not kind or ":" in kind:
        raise ValueError(f"a principal has no type {kind[:64]!r}")
    return f"{kind}:{name}"


def _string(data: bytes, position: int) -> tuple[str, int]:
    length, position = read_unsigned_varint(data, position)
    end = position + length - 1
    if not 0 < length <= _NAME_BYTES_MAX or end > len(data):
        raise ValueError(f"the principal claims a name of {length - 1} bytes")
    return data[position:end].decode(), end
