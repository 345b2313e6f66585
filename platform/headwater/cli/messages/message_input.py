"""Converts a line of input to a message: key separator and headers of `headwater produce`. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO

LINE_BYTES_MAX = 64 << 20
"""Longest line read into memory; brokers refuse far smaller messages."""


class LineTooLongError(ValueError):
    """A line exceeds LINE_BYTES_MAX; the message names the line."""


def read_lines(stream: BinaryIO) -> Iterator[bytes]:
    r"""Yield lines without their terminators; the last line may lack one. An empty line is an empty message.

    >>> import io
    >>> list(read_lines(io.BytesIO(b"a\r\n\nb")))
    [b'a\r', b'', b'b']
    """
    number = 0
    while line := stream.readline(LINE_BYTES_MAX + 1):
        number += 1
        line = line.removesuffix(b"\n")
        if len(line) > LINE_BYTES_MAX:
            raise LineTooLongError(
                f"line {number}: it is longer than {LINE_BYTES_MAX} bytes; split the input into lines"
            )
        yield line


def split_key(line: bytes, separator: bytes | None) -> tuple[bytes | None, bytes]:
    """Split a line at the first separator; without a separator the whole line is the value and the key is None.

    >>> split_key(b"N14228:{}", b":"), split_key(b"{}", b":"), split_key(b":x", b":")
    ((b'N14228', b'{}'), (None, b'{}'), (b'', b'x'))
    """
    if separator is None:
        return None, line
    key, found, value = line.partition(separator)
    return (key, value) if found else (None, line)


def unescape(text: str) -> str:
    r"""Decode the escapes `\t`, `\n`, `\r`, `\0`, `\\` and `\xHH`.

    >>> unescape(r"a\tb\x01")
    'a\tb\x01'
    """
    plain = {"t": "\t", "n": "\n", "r": "\r", "0": "\0", "\\": "\\"}
    result = []
    position = 0
    while position < len(text):
        following = text[position + 1 : position + 2]
        if text[position] != "\\" or not following:
            result.append(text[position])
            position += 1
        elif following in plain:
            result.append(plain[following])
            position += 2
        elif following == "x" and len(code := text[position + 2 : position + 4]) == 2:
            try:
                result.append(chr(int(code, 16)))
            except ValueError:
                raise ValueError(f"\\x{code} in {text!r} is not a byte: use two hexadecimal digits") from None
            position += 4
        else:
            raise ValueError(f"\\{following} in {text!r} is not known: use \\t \\n \\r \\0 \\\\ or \\xHH")
    return "".join(result)
