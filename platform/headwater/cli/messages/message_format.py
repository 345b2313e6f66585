"""Formats of messages printed by `headwater consume`: format strings in the style of kcat and rpk, and JSON. Pure."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from headwater.cli.messages.message_input import unescape

DEFAULT_FORMAT: Final = r"%v\n"


@dataclass(frozen=True, slots=True)
class Message:
    """A consumed message. `timestamp_ms` is -1 if absent; a tombstone's value is None."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]] = ()


def _headers(message: Message) -> bytes:
    return b",".join(name.encode() + b"=" + (value or b"") for name, value in message.headers)


DIRECTIVES: Final[dict[str, tuple[str, Callable[[Message], bytes]]]] = {
    "t": ("topic", lambda m: m.topic.encode()),
    "p": ("partition", lambda m: b"%d" % m.partition),
    "o": ("offset", lambda m: b"%d" % m.offset),
    "k": ("key, empty when there is none", lambda m: m.key or b""),
    "v": ("value, empty when there is none", lambda m: m.value or b""),
    "s": ("the same as %v", lambda m: m.value or b""),
    "T": ("timestamp in milliseconds since 1970", lambda m: b"%d" % m.timestamp_ms),
    "h": ("headers as name=value,...", _headers),
    "K": ("bytes of the key, -1 without one", lambda m: b"%d" % (-1 if m.key is None else len(m.key))),
    "S": ("bytes of the value, -1 without one", lambda m: b"%d" % (-1 if m.value is None else len(m.value))),
    "%": ("a percent sign", lambda _m: b"%"),
}


def compile_format(text: str) -> Callable[[Message], bytes]:
    r"""Compile a format string to a function.

    >>> show = compile_format(r"%t %p %o %k %v\n")
    >>> show(Message("flights", 0, 7, 0, None, b"{}"))
    b'flights 0 7  {}\n'
    >>> compile_format("%q")
    Traceback (most recent call last):
        ...
    ValueError: %q in '%q' is not known: use %t %p %o %k %v %s %T %h %K %S %%
    """
    parts: list[bytes | Callable[[Message], bytes]] = []
    literal = ""
    position = 0
    # Escapes are read per literal piece, so that `\x25` is a percent sign and not a directive.
    while position < len(text):
        if text[position] != "%":
            literal += text[position]
            position += 1
            continue
        name = text[position + 1 : position + 2]
        if name not in DIRECTIVES:
            known = " ".join(f"%{directive}" for directive in DIRECTIVES)
            raise ValueError(f"%{name} in {text!r} is not known: use {known}")
        parts += [unescape(literal).encode("utf-8", "surrogateescape"), DIRECTIVES[name][1]]
        literal = ""
        position += 2
    parts.append(unescape(literal).encode("utf-8", "surrogateescape"))
    return lambda message: b"".join(part if isinstance(part, bytes) else part(message) for part in parts)


def format_json(message: Message) -> bytes:
    """Format a message as one line of JSON; bytes that are not UTF-8 become base64, and a field reports the encoding.

    >>> format_json(Message("t", 0, 1, 5, None, b"x"))
    b'{"topic": "t", "partition": 0, "offset": 1, "timestamp_ms": 5, "headers": [], "key": null, "value": "x"}\\n'
    """
    document: dict[str, Any] = {
        "topic": message.topic,
        "partition": message.partition,
        "offset": message.offset,
        "timestamp_ms": message.timestamp_ms,
        "headers": [_header(name, value) for name, value in message.headers],
    }
    for name, data in (("key", message.key), ("value", message.value)):
        document[name], encoding = _text(data)
        if encoding:
            document[f"{name}_encoding"] = encoding
    return json.dumps(document, ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n"


def _header(name: str, value: bytes | None) -> list[str | None]:
    """Return name and value, and the value's encoding if it is not UTF-8.

    >>> _header("a", b"x"), _header("a", bytes([255]))
    (['a', 'x'], ['a', '/w==', 'base64'])
    """
    text, encoding = _text(value)
    return [name, text, encoding] if encoding else [name, text]


def _text(data: bytes | None) -> tuple[str | None, str | None]:
    if data is None:
        return None, None
    try:
        return data.decode(), None
    except UnicodeDecodeError:
        return base64.b64encode(data).decode(), "base64"
