"""Compiled loops of `json_fields`: parse JSON objects to column buffers.

The loops accept unambiguous values only, and leave all others to Spark's parser: nested fields, numbers that a double
cannot represent exactly, duplicate names or names with escapes, lone surrogates, bytes other than UTF-8. Accepted
values therefore have the same result as in Spark (RFC 8259; `from_json` with its default options).

numba does not check indices: a comparison with the value's end precedes every access.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from headwater.logtier.records.columns_compiled import kernel

__all__ = ["BOOLEAN", "DATE", "DOUBLE", "INT", "LONG", "SIZE", "STRING", "TIMESTAMP", "copy_strings", "parse_objects"]

# numba's machine integers; typed Any so that they mix with Python's integers.
_I64: Any = np.int64
_F64: Any = np.float64

# Target types of fields.
LONG = 0
INT = 1
DOUBLE = 2
BOOLEAN = 3
STRING = 4
TIMESTAMP = 5  # microseconds since 1970, of a text in UTC
DATE = 6  # days since 1970

# A string's number holds its length in the lower 31 bits, and in the next bit whether it has escapes.
_ESCAPED = 1 << 31
SIZE = _ESCAPED - 1

# Spark parses longer numbers: Jackson has its own limits for them.
_TEXT_BYTES_MAX = 1 << 20
_NAME_BYTES_MAX = 1_000
_DEPTH_MAX = 60
_LONG_DIGITS_MAX = 18
# Within these limits a double is exact, and so is the power of ten by which it is multiplied or divided: there is one
# rounding, and so a correct result (Clinger, "How to Read Floating Point Numbers Accurately", 1990).
_DOUBLE_DIGITS_MAX = 15
_EXPONENT_MAX = 22
_POWERS = 10.0 ** np.arange(_EXPONENT_MAX + 1)

_TRUE, _FALSE, _NULL = (np.frombuffer(word, np.uint8) for word in (b"true", b"false", b"null"))


@kernel
def _after_space(data: Any, at: int, end: int) -> Any:
    """Return the position of the next byte other than white space."""
    while at < end and (data[at] == 32 or data[at] == 10 or data[at] == 13 or data[at] == 9):
        at += 1
    return at


@kernel
def _is_utf8(data: Any, at: int, end: int) -> Any:
    """Return whether bytes are well-formed UTF-8 (Unicode, table 3-7)."""
    while at < end:
        first = data[at]
        if first < 0x80:
            at += 1
            continue
        low, high = 0x80, 0xBF
        if 0xC2 <= first <= 0xDF:
            more = 1
        elif 0xE0 <= first <= 0xEF:
            more = 2
            if first == 0xE0:
                low = 0xA0
            elif first == 0xED:
                high = 0x9F
        elif 0xF0 <= first <= 0xF4:
            more = 3
            if first == 0xF0:
                low = 0x90
            elif first == 0xF4:
                high = 0x8F
        else:
            return False
        if at + more >= end:
            return False
        if data[at + 1] < low or data[at + 1] > high:
            return False
        for i in range(2, more + 1):
            if data[at + i] < 0x80 or data[at + i] > 0xBF:
                return False
        at += more + 1
    return True


@kernel
def _hex(data: Any, at: int, end: int) -> Any:
    """Return the value of four hexadecimal digits, or -1."""
    if at + 4 > end:
        return _I64(-1)
    number = _I64(0)
    for i in range(4):
        byte = _I64(data[at + i])
        if 48 <= byte <= 57:
            number = number * 16 + byte - 48
        elif 97 <= byte <= 102 or 65 <= byte <= 70:
            number = number * 16 + (byte & 15) + 9
        else:
            return _I64(-1)
    return number


@kernel
def _escape(data: Any, at: int, end: int) -> tuple[Any, Any]:
    """Return the position after the escape whose backslash is at `at`, and its code point; -1 if not accepted."""
    at += 1
    if at >= end:
        return -1, _I64(0)
    byte = data[at]
    if byte == 117:
        code = _hex(data, at + 1, end)
        at += 5
        if code < 0 or 0xDC00 <= code <= 0xDFFF:
            return -1, code
        if 0xD800 <= code <= 0xDBFF:  # a pair, of which both halves have to be there
            if at + 6 > end or data[at] != 92 or data[at + 1] != 117:
                return -1, code
            low = _hex(data, at + 2, end)
            if low < 0xDC00 or low > 0xDFFF:
                return -1, code
            return at + 6, 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00)
        return at, code
    if byte == 34 or byte == 92 or byte == 47:
        return at + 1, _I64(byte)
    if byte == 110:
        return at + 1, _I64(10)
    if byte == 116:
        return at + 1, _I64(9)
    if byte == 114:
        return at + 1, _I64(13)
    if byte == 98:
        return at + 1, _I64(8)
    if byte == 102:
        return at + 1, _I64(12)
    return -1, _I64(0)


@kernel
def _text_end(data: Any, at: int, end: int) -> tuple[Any, Any]:
    """Return the position of a string's closing quote, and whether the string has escapes; `at` follows its quote.

    The position is -1 if the string is not accepted.
    """
    start = at
    high = False
    escaped = False
    while at < end:
        byte = data[at]
        if byte == 34:
            if at - start > _TEXT_BYTES_MAX or (high and not _is_utf8(data, start, at)):
                return -1, escaped
            return at, escaped
        if byte == 92:
            escaped = True
            at, _ = _escape(data, at, end)
            if at < 0:
                return -1, True
            continue
        if byte < 32:
            return -1, escaped
        if byte >= 128:
            high = True
        at += 1
    return -1, escaped


@kernel
def _number(data: Any, at: int, end: int) -> tuple[Any, Any, Any, Any]:
    """Parse a number to (position after it, mantissa, decimal exponent, whether it is written as an integer).

    The position is -1 if the number is not accepted. Negative zero is not accepted.
    """
    negative = at < end and data[at] == 45
    if negative:
        at += 1
    start = at
    mantissa = _I64(0)
    while at < end and 48 <= data[at] <= 57 and at - start <= _LONG_DIGITS_MAX:
        mantissa = mantissa * 10 + (_I64(data[at]) - 48)
        at += 1
    digits = at - start
    if digits == 0 or digits > _LONG_DIGITS_MAX or (digits > 1 and data[start] == 48):
        return -1, mantissa, _I64(0), True
    integer = True
    exponent = _I64(0)
    if at < end and data[at] == 46:
        integer = False
        at += 1
        first = at
        while at < end and 48 <= data[at] <= 57 and digits + (at - first) <= _LONG_DIGITS_MAX:
            mantissa = mantissa * 10 + (_I64(data[at]) - 48)
            at += 1
        if at == first or digits + (at - first) > _LONG_DIGITS_MAX:
            return -1, mantissa, _I64(0), False
        exponent = -_I64(at - first)
    if at < end and (data[at] == 101 or data[at] == 69):  # an exponent that is written is rare, and Spark's
        return -1, mantissa, _I64(0), False
    if negative:
        if mantissa == 0:
            return -1, mantissa, _I64(0), integer
        mantissa = -mantissa
    return at, mantissa, exponent, integer


@kernel
def _digits(data: Any, at: int, count: int) -> Any:
    """Return the value of `count` digits, or -1."""
    number = _I64(0)
    for i in range(count):
        byte = data[at + i]
        if byte < 48 or byte > 57:
            return _I64(-1)
        number = number * 10 + (_I64(byte) - 48)
    return number


@kernel
def _days(data: Any, at: int) -> tuple[Any, Any]:
    """Return whether the ten bytes are a date, YYYY-MM-DD from year 1 on, and its days since 1970."""
    year, month, day = _digits(data, at, 4), _digits(data, at + 5, 2), _digits(data, at + 8, 2)
    if data[at + 4] != 45 or data[at + 7] != 45 or year < 1 or month < 1 or month > 12 or day < 1:
        return False, _I64(0)
    leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    if month == 2:
        longest = 29 if leap else 28
    elif month == 4 or month == 6 or month == 9 or month == 11:
        longest = 30
    else:
        longest = 31
    if day > longest:
        return False, _I64(0)
    # Days of the proleptic Gregorian calendar, in years that begin in March.
    if month <= 2:
        year -= 1
        month += 12
    before = 365 * year + year // 4 - year // 100 + year // 400 + (153 * (month - 3) + 2) // 5
    return True, before + day - 1 - 719_468


@kernel
def _timestamp(data: Any, start: int, end: int) -> tuple[Any, Any]:
    """Return whether a text is YYYY-MM-DDTHH:MM:SS[.f]Z, f of 1 to 6 digits, and its microseconds since 1970."""
    size = end - start
    if size < 20 or size > 27 or size == 21 or data[end - 1] != 90 or data[start + 10] != 84:
        return False, _I64(0)
    good, days = _days(data, start)
    if not good or data[start + 13] != 58 or data[start + 16] != 58:
        return False, _I64(0)
    hour, minute, second = _digits(data, start + 11, 2), _digits(data, start + 14, 2), _digits(data, start + 17, 2)
    if hour < 0 or hour > 23 or minute < 0 or minute > 59 or second < 0 or second > 59:
        return False, _I64(0)
    fraction = _I64(0)
    if size > 20:
        if data[start + 19] != 46:
            return False, _I64(0)
        fraction = _digits(data, start + 20, size - 21)
        if fraction < 0:
            return False, _I64(0)
        for _ in range(27 - size):
            fraction *= 10
    return True, ((days * 24 + hour) * 60 + minute) * 60_000_000 + second * 1_000_000 + fraction


@kernel
def _literal_end(data: Any, at: int, end: int, word: Any) -> Any:
    """Return the position after an expected word, -1 if the bytes differ."""
    if at + len(word) > end:
        return -1
    for i in range(len(word)):
        if data[at + i] != word[i]:
            return -1
    return at + len(word)


@kernel
def _value_begin(data: Any, at: int, end: int) -> Any:
    """Return the position of a member's value; the member's name begins at `at`. -1 if there is no member."""
    if at >= end or data[at] != 34:
        return -1
    at, _ = _text_end(data, at + 1, end)
    if at < 0:
        return -1
    at = _after_space(data, at + 1, end)
    return _after_space(data, at + 1, end) if at < end and data[at] == 58 else -1


@kernel
def _nested_end(data: Any, at: int, end: int) -> Any:
    """Return the position after an unrequested object or array that begins at `at`; -1 if not accepted."""
    objects = _I64(0)  # a bit for each level, the innermost last: 1 for an object
    depth = 0
    while True:
        # Here begins a value.
        if at >= end:
            return -1
        byte = data[at]
        if byte == 123 or byte == 91:
            if depth == _DEPTH_MAX:
                return -1
            depth += 1
            objects = (objects << 1) | (1 if byte == 123 else 0)
            at = _after_space(data, at + 1, end)
            if at >= end or data[at] != (125 if byte == 123 else 93):
                if byte == 123:
                    at = _value_begin(data, at, end)
                    if at < 0:
                        return -1
                continue
        elif byte == 34:
            at, _ = _text_end(data, at + 1, end)
            if at < 0:
                return -1
            at += 1
        elif byte == 45 or 48 <= byte <= 57:
            at, _, _, _ = _number(data, at, end)
        elif byte == 110:
            at = _literal_end(data, at, end, _NULL)
        elif byte == 116:
            at = _literal_end(data, at, end, _TRUE)
        elif byte == 102:
            at = _literal_end(data, at, end, _FALSE)
        else:
            return -1
        if at < 0:
            return -1
        # Here ends a value, or an object or array that was empty: as many levels as are closed, then a comma.
        at = _after_space(data, at, end)
        while at < end and data[at] == (125 if objects & 1 else 93):
            objects >>= 1
            depth -= 1
            if depth == 0:
                return at + 1
            at = _after_space(data, at + 1, end)
        if at >= end or data[at] != 44:
            return -1
        at = _after_space(data, at + 1, end)
        if objects & 1:
            at = _value_begin(data, at, end)
            if at < 0:
                return -1


@kernel
def _field(data: Any, start: int, end: int, names: Any, name_ends: Any, likely: int) -> Any:
    """Return the index of the name that equals the bytes, -1 for none. `likely` is compared first."""
    size = end - start
    count = len(name_ends)
    for turn in range(count):
        field = likely + turn
        if field >= count:
            field -= count
        first = name_ends[field - 1] if field else 0
        if name_ends[field] - first != size:
            continue
        i = 0
        while i < size and data[start + i] == names[first + i]:
            i += 1
        if i == size:
            return field
    return -1


@kernel
def _likely_end(data: Any, start: int, end: int, names: Any, name_ends: Any, likely: int) -> Any:
    """Return the position of the closing quote if the bytes from `start` on are the likely name, otherwise -1."""
    first = name_ends[likely - 1] if likely else 0
    size = name_ends[likely] - first
    if start + size >= end or data[start + size] != 34:
        return -1
    for i in range(size):
        if data[start + i] != names[first + i]:
            return -1
    return start + size


@kernel
def _parse_object(
    data: Any,
    at: int,
    end: int,
    names: Any,
    name_ends: Any,
    types: Any,
    row: int,
    numbers: Any,
    doubles: Any,
    found: Any,
    last_seen: Any,
) -> Any:
    """Parse one value; returns whether the whole value was accepted. If not, the entries of `found` have no meaning."""
    at = _after_space(data, at, end)
    if at >= end or data[at] != 123:
        return False
    at = _after_space(data, at + 1, end)
    likely = 0
    while at < end:
        if data[at] == 125:
            return _after_space(data, at + 1, end) == end
        if data[at] != 34:
            return False
        start = at + 1
        at = _likely_end(data, start, end, names, name_ends, likely)
        field = likely
        if at < 0:
            at, escaped = _text_end(data, start, end)
            if at < 0 or escaped or at - start > _NAME_BYTES_MAX:
                return False
            field = _field(data, start, at, names, name_ends, likely)
        at = _after_space(data, at + 1, end)
        if at >= end or data[at] != 58:
            return False
        at = _after_space(data, at + 1, end)
        if at >= end:
            return False
        kind = -1
        if field >= 0:
            if last_seen[field] == row:
                return False  # the name stands here for the second time
            last_seen[field] = row
            found[field, row] = 1
            likely = field + 1 if field + 1 < len(name_ends) else 0
            kind = types[field]
        byte = data[at]
        if byte == 34:
            start = at + 1
            at, escaped = _text_end(data, start, end)
            if at < 0:
                return False
            if kind == STRING:
                numbers[field, row] = (_I64(start) << 32) | (_ESCAPED if escaped else 0) | _I64(at - start)
            elif kind == TIMESTAMP:
                good, numbers[field, row] = _timestamp(data, start, at)
                if not good:
                    return False
            elif kind == DATE:
                if at - start != 10:
                    return False
                good, numbers[field, row] = _days(data, start)
                if not good:
                    return False
            elif kind >= 0:
                return False
            at += 1
        elif byte == 45 or 48 <= byte <= 57:
            at, mantissa, exponent, is_integer = _number(data, at, end)
            if at < 0:
                return False
            if kind in (LONG, INT):
                if not is_integer or (kind == INT and (mantissa < -(1 << 31) or mantissa >= (1 << 31))):
                    return False
                numbers[field, row] = mantissa
            elif kind == DOUBLE:
                if mantissa >= 10**_DOUBLE_DIGITS_MAX or mantissa <= -(10**_DOUBLE_DIGITS_MAX):
                    return False
                doubles[field, row] = _F64(mantissa) / _POWERS[-exponent]
            elif kind >= 0:
                return False
        elif byte == 110:
            at = _literal_end(data, at, end, _NULL)
            if at < 0:
                return False
            if field >= 0:
                found[field, row] = 0
        elif byte == 116 or byte == 102:
            at = _literal_end(data, at, end, _TRUE if byte == 116 else _FALSE)
            if at < 0 or (kind >= 0 and kind != BOOLEAN):
                return False
            if kind == BOOLEAN:
                numbers[field, row] = 1 if byte == 116 else 0
        elif (byte == 123 or byte == 91) and kind < 0:
            at = _nested_end(data, at, end)
            if at < 0:
                return False
        else:
            return False
        at = _after_space(data, at, end)
        if at >= end:
            return False
        if data[at] == 44:
            at = _after_space(data, at + 1, end)
            if at >= end or data[at] != 34:
                return False
        elif data[at] != 125:
            return False
    return False


@kernel
def parse_objects(
    data: Any,
    offsets: Any,
    frame_bytes: int,
    names: Any,
    name_ends: Any,
    types: Any,
    numbers: Any,
    doubles: Any,
    has_value: Any,
    whole: Any,
) -> None:
    """Parse the values between `offsets`. A frame, if present, begins with a zero byte.

    `names` is the concatenation of the fields' names, with their ends in `name_ends`. `numbers` (fields x rows)
    receives an integer, microseconds, days, or for a string its start (32 bits), whether it has escapes (1) and its
    length (31); `doubles` shares the memory of `numbers`. `has_value` (fields x rows, initially zero): 1 for a present
    field. `whole` (rows): 1 for an accepted value.
    """
    last_seen = np.full(len(types), -1, np.int64)  # the row in which a field stood last
    for row in range(len(offsets) - 1):
        at, end = _I64(offsets[row]), _I64(offsets[row + 1])
        good = end - at > frame_bytes and (frame_bytes == 0 or data[at] == 0)
        good = good and _parse_object(
            data, at + frame_bytes, end, names, name_ends, types, row, numbers, doubles, has_value, last_seen
        )
        whole[row] = 1 if good else 0
        if not good:
            for field in range(len(types)):
                has_value[field, row] = 0


@kernel
def _put_code_point(out: Any, to: int, code: int) -> Any:
    """Write a code point as UTF-8; returns the next position."""
    if code < 0x80:
        out[to] = code
        return to + 1
    if code < 0x800:
        out[to] = 0xC0 | (code >> 6)
        out[to + 1] = 0x80 | (code & 63)
        return to + 2
    if code < 0x10000:
        out[to] = 0xE0 | (code >> 12)
        out[to + 1] = 0x80 | ((code >> 6) & 63)
        out[to + 2] = 0x80 | (code & 63)
        return to + 3
    out[to] = 0xF0 | (code >> 18)
    out[to + 1] = 0x80 | ((code >> 12) & 63)
    out[to + 2] = 0x80 | ((code >> 6) & 63)
    out[to + 3] = 0x80 | (code & 63)
    return to + 4


@kernel
def copy_strings(data: Any, places: Any, has_value: Any, offsets: Any, out: Any) -> None:
    """Concatenate the strings of one column to `out`, and write their ends to `offsets`, after its leading zero.

    An escape is at least as long as the encoded character, so the length as written is sufficient.
    """
    to = _I64(0)
    for row in range(len(places)):
        if has_value[row]:
            at, size = places[row] >> 32, places[row] & SIZE
            end = at + size
            if places[row] & _ESCAPED:
                while at < end:
                    if data[at] == 92:
                        at, code = _escape(data, at, end)
                        to = _put_code_point(out, to, code)
                    else:
                        out[to] = data[at]
                        at += 1
                        to += 1
            else:
                for i in range(size):
                    out[to + i] = data[at + i]
                to += size
        offsets[row + 1] = to
