"""Parses untrusted JSON: refuses extensions that Python's parser accepts, and texts on which it fails unclearly."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from typing import Any, Final

_SURROGATE_ESCAPE: Final = re.compile(r"\\u[dD][89abABcdefCDEF]")


class JsonTextError(ValueError):
    """JSON was refused; the message states the reason."""


def parse_json(
    source: str | bytes,
    *,
    object_pairs_hook: Callable[[list[tuple[str, Any]]], Any] | None = None,
    parse_constant: Callable[[str], Any] | None = None,
) -> Any:
    r"""Parse JSON; every text in the result can be encoded as UTF-8.

    Raises:
        JSONDecodeError: the source is not JSON.
        JsonTextError: the source is not UTF-8, has a lone surrogate, nests too deeply, or has too long an integer.

    >>> parse_json(b'{"a": "\\ud83d\\ude00"}')
    {'a': '😀'}
    >>> parse_json(b'{"a": 1')
    Traceback (most recent call last):
        ...
    json.decoder.JSONDecodeError: Expecting ',' delimiter: line 1 column 8 (char 7)
    """
    try:
        text = source.decode("utf-8-sig") if isinstance(source, bytes) else source
    except UnicodeDecodeError as error:
        raise JsonTextError(f"it is not UTF-8: {error.reason} at byte {error.start}") from None
    try:
        parsed = json.loads(text, object_pairs_hook=object_pairs_hook, parse_constant=parse_constant)
    except json.JSONDecodeError:
        raise
    except RecursionError:
        raise JsonTextError("it nests too deeply") from None
    except ValueError as error:
        if type(error) is not ValueError:
            raise  # a hook raised it
        raise JsonTextError(f"an integer has more than {sys.get_int_max_str_digits()} digits") from None
    # A half comes from an escape, or stands in a `str` as it is: pairs of escapes have become one character.
    if isinstance(source, str) or _SURROGATE_ESCAPE.search(text):
        require_unicode(json.dumps(parsed, ensure_ascii=False))
    return parsed


def require_unicode(text: str) -> None:
    """Raise JsonTextError if a text contains a lone surrogate."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        half = f"\\u{ord(text[error.start]):04x}"
        raise JsonTextError(f"a text has half of a surrogate pair ({half}), which is not Unicode") from None
