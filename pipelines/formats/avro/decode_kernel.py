"""The loop that runs reading programs: converts bytes of Avro values to entries of slots.

Each entry of a slot has a presence flag (`valid`) and two numbers: a value (floating-point values by their bits), the
position and length of bytes, the number of items of a list, or both halves of a decimal. Bytes are not copied here. A
negative position p refers to the program's constants, at -1 - p.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from headwater.logtier.records.columns_compiled import kernel
from headwater.logtier.records.field_kernels import varint

END: Final = 0  # of the value
NULLS: Final = 1  # count, slots
VALID: Final = 2  # slot: a struct is there
BOOLEAN: Final = 3  # slot
INT: Final = 4  # slot, unit
LONG: Final = 5  # slot, unit
FLOAT: Final = 6  # slot
DOUBLE: Final = 7  # slot
BYTES: Final = 8  # slot, whether they have to be UTF-8
FIXED: Final = 9  # slot, size
ENUM: Final = 10  # slot, where in the table, how many
UNION: Final = 11  # count, targets
JUMP: Final = 12  # target
FAIL: Final = 13  # message
CONSTANT: Final = 14  # slot, both numbers
CONSTANT_BYTES: Final = 15  # slot, where among the constants, length
LIST: Final = 16  # slot, where it goes on behind the list; the items' program follows
NEXT: Final = 17  # end of an item's program
SKIP_VARINT: Final = 18
SKIP_BYTES: Final = 19
SKIP_FIXED: Final = 20  # size
SKIP_LIST: Final = 21  # where it goes on
CALL: Final = 22  # target
RETURN: Final = 23
DECIMAL: Final = 24  # slot, size (-1: it stands before the bytes), lower and upper half of the first number too large

AS_IS: Final = 0
THOUSAND: Final = 1  # times: milliseconds
THOUSANDTH: Final = 2  # nanoseconds
FLOATING: Final = 3

OK: Final = 0
TRUNCATED: Final = 1
BAD_NUMBER: Final = 2
BAD_BRANCH: Final = 3
BAD_SYMBOL: Final = 4
NOT_UTF8: Final = 5
TOO_MANY: Final = 6
TOO_DEEP: Final = 7
FAILED: Final = 8  # the detail is the message
UNKNOWN_SYMBOL: Final = 9  # the detail is the symbol's number
TOO_LARGE: Final = 10
REASONS: Final = {
    TRUNCATED: "it ends too early",
    BAD_NUMBER: "a number is too large",
    BAD_BRANCH: "it names a branch that the union does not have",
    BAD_SYMBOL: "it names a symbol that the enum does not have",
    NOT_UTF8: "a text is not UTF-8",
    TOO_MANY: "a list has more items than the value has bytes",
    TOO_DEEP: "it nests too deep",
    TOO_LARGE: "a decimal has more digits than its type",
}

DEPTH_MAX: Final = 256  # of lists and of skipped records in each other

_I64: Any = np.int64
_U64: Any = np.uint64
_U8: Any = np.uint8


@kernel
def is_utf8(data: Any, begin: int, end: int) -> bool:
    """Return whether bytes are UTF-8: no surrogates, no overlong encodings, nothing above U+10FFFF."""
    position = begin
    while position < end:
        first = data[position]
        if first < 0x80:
            position += 1
            continue
        if first < 0xC2 or first > 0xF4:
            return False
        more = 1 if first < 0xE0 else (2 if first < 0xF0 else 3)
        if position + more >= end:
            return False
        low, high = 0x80, 0xBF
        if first == 0xE0:
            low = 0xA0
        elif first == 0xED:
            high = 0x9F
        elif first == 0xF0:
            low = 0x90
        elif first == 0xF4:
            high = 0x8F
        second = data[position + 1]
        if second < low or second > high:
            return False
        for index in range(2, more + 1):
            if data[position + index] & 0xC0 != 0x80:
                return False
        position += more + 1
    return True


@kernel
def _bits64(data: Any, position: int) -> Any:
    """Read eight bytes, little-endian."""
    found = _I64(0)
    for index in range(8):
        found |= _I64(data[position + index]) << (8 * index)
    return found


@kernel
def decode(
    data: Any,
    starts: Any,
    ends: Any,
    entries: Any,
    begin: int,
    code: Any,
    table: Any,
    valid: Any,
    first: Any,
    second: Any,
    counts: Any,
    capacity: int,
    errors: Any,
    details: Any,
    root_nulls: Any,
    chained: bool,
) -> int:
    """Decode values from row `begin` on; returns the first row without room, or the number of rows.

    `entries` contains the start of each row's program (negative: the row has an error already). An unreadable row
    becomes null; `errors` and `details` hold the reason. Each of `chained` rows starts at the end of its predecessor,
    which is stored in `starts`; the rows after an unreadable row are null as well.
    """
    slots = len(counts)
    saved = np.zeros(slots, np.int64)
    loop_slot = np.zeros(DEPTH_MAX, np.int64)
    loop_total = np.zeros(DEPTH_MAX, np.int64)
    loop_left = np.zeros(DEPTH_MAX, np.int64)
    loop_body = np.zeros(DEPTH_MAX, np.int64)
    calls = np.zeros(DEPTH_MAX, np.int64)
    floats = np.zeros(1, np.float64)
    float_bits = floats.view(np.int64)
    singles = np.zeros(1, np.float32)
    single_bits = singles.view(np.int32)
    for row in range(begin, len(starts)):
        pc = entries[row]
        for slot in range(slots):
            saved[slot] = counts[slot]
        error = OK
        detail = 0
        depth = 0
        called = 0
        position = starts[row]
        end = ends[row]
        running = pc >= 0
        full = False
        while running:
            op = code[pc]
            if op in (LONG, INT):
                value, position = varint(data, position, end)
                if position < 0:
                    error = TRUNCATED
                    break
                if op == INT and (value < -2147483648 or value > 2147483647):
                    error = BAD_NUMBER
                    break
                slot = code[pc + 1]
                unit = code[pc + 2]
                if unit == THOUSAND:
                    if value > 9223372036854775 or value < -9223372036854775:
                        error = BAD_NUMBER
                        break
                    value *= 1000
                elif unit == THOUSANDTH:
                    value = value // 1000
                elif unit == FLOATING:
                    floats[0] = value
                    value = float_bits[0]
                at = counts[slot]
                if at >= capacity:
                    full = True
                    break
                counts[slot] = at + 1
                valid[slot, at] = 1
                first[slot, at] = value
                pc += 3
            elif op in (BYTES, FIXED):
                slot = code[pc + 1]
                if op == BYTES:
                    size, position = varint(data, position, end)
                    if position < 0:
                        error = TRUNCATED
                        break
                else:
                    size = code[pc + 2]
                if size < 0 or size > end - position:
                    error = TRUNCATED
                    break
                if op == BYTES and code[pc + 2] == 1 and not is_utf8(data, position, position + size):
                    error = NOT_UTF8
                    break
                at = counts[slot]
                if at >= capacity:
                    full = True
                    break
                counts[slot] = at + 1
                valid[slot, at] = 1
                first[slot, at] = position
                second[slot, at] = size
                position += size
                pc += 3
            elif op == UNION:
                value, position = varint(data, position, end)
                if position < 0:
                    error = TRUNCATED
                    break
                if value < 0 or value >= code[pc + 1]:
                    error = BAD_BRANCH
                    break
                pc = code[pc + 2 + value]
            elif op == DOUBLE:
                if end - position < 8:
                    error = TRUNCATED
                    break
                slot = code[pc + 1]
                at = counts[slot]
                if at >= capacity:
                    full = True
                    break
                counts[slot] = at + 1
                valid[slot, at] = 1
                first[slot, at] = _bits64(data, position)
                position += 8
                pc += 2
            elif op == FLOAT:
                if end - position < 4:
                    error = TRUNCATED
                    break
                slot = code[pc + 1]
                at = counts[slot]
                if at >= capacity:
                    full = True
                    break
                bits = _I64(0)
                for index in range(4):
                    bits |= _I64(data[position + index]) << (8 * index)
                single_bits[0] = bits
                floats[0] = singles[0]
                counts[slot] = at + 1
                valid[slot, at] = 1
                first[slot, at] = float_bits[0]
                position += 4
                pc += 2
            elif op == BOOLEAN:
                if position >= end:
                    error = TRUNCATED
                    break
                slot = code[pc + 1]
                at = counts[slot]
                if at >= capacity:
                    full = True
                    break
                if data[position] > 1:
                    error = BAD_NUMBER
                    break
                counts[slot] = at + 1
                valid[slot, at] = 1
                first[slot, at] = data[position]
                position += 1
                pc += 2
            elif op == NULLS:
                count = code[pc + 1]
                for index in range(count):
                    slot = code[pc + 2 + index]
                    at = counts[slot]
                    if at >= capacity:
                        full = True
                        break
                    counts[slot] = at + 1
                    valid[slot, at] = 0
                    first[slot, at] = 0
                    second[slot, at] = 0
                if full:
                    break
                pc += 2 + count
            elif op in (VALID, CONSTANT, CONSTANT_BYTES):
                slot = code[pc + 1]
                at = counts[slot]
                if at >= capacity:
                    full = True
                    break
                counts[slot] = at + 1
                valid[slot, at] = 1
                if op == VALID:
                    pc += 2
                elif op == CONSTANT:
                    first[slot, at] = code[pc + 2]
                    second[slot, at] = code[pc + 3]
                    pc += 4
                else:
                    first[slot, at] = -1 - code[pc + 2]
                    second[slot, at] = code[pc + 3]
                    pc += 4
            elif op == ENUM:
                value, position = varint(data, position, end)
                if position < 0:
                    error = TRUNCATED
                    break
                if value < 0 or value >= code[pc + 3]:
                    error = BAD_SYMBOL
                    break
                slot = code[pc + 1]
                mapped = table[code[pc + 2] + value]
                if mapped < 0:
                    error = UNKNOWN_SYMBOL
                    detail = -1 - mapped
                    break
                at = counts[slot]
                if at >= capacity:
                    full = True
                    break
                counts[slot] = at + 1
                valid[slot, at] = 1
                first[slot, at] = mapped
                pc += 4
            elif op == DECIMAL:
                size = code[pc + 2]
                if size < 0:
                    size, position = varint(data, position, end)
                    if position < 0:
                        error = TRUNCATED
                        break
                if size < 0 or size > end - position:
                    error = TRUNCATED
                    break
                low = _U64(0)
                high = _U64(0)
                negative = size > 0 and data[position] >= 128
                if negative:
                    low = ~low
                    high = ~high
                filler = _U8(255) if negative else _U8(0)
                for index in range(size):
                    if size - index > 16 and data[position + index] != filler:
                        error = TOO_LARGE
                    high = (high << _U64(8)) | (low >> _U64(56))
                    low = (low << _U64(8)) | _U64(data[position + index])
                if size >= 16 and ((high >> _U64(63)) == _U64(1)) != negative:
                    error = TOO_LARGE
                if error != OK:
                    break
                # The number without its sign, beside the first one that is too large.
                low_size = low
                high_size = high
                if negative:
                    low_size = ~low + _U64(1)
                    high_size = ~high + (_U64(1) if low_size == _U64(0) else _U64(0))
                most_low = _U64(code[pc + 3])
                most_high = _U64(code[pc + 4])
                if high_size > most_high or (high_size == most_high and low_size >= most_low):
                    error = TOO_LARGE
                    break
                slot = code[pc + 1]
                at = counts[slot]
                if at >= capacity:
                    full = True
                    break
                counts[slot] = at + 1
                valid[slot, at] = 1
                first[slot, at] = _I64(low)
                second[slot, at] = _I64(high)
                position += size
                pc += 5
            elif op in (LIST, SKIP_LIST):
                if depth == DEPTH_MAX:
                    error = TOO_DEEP
                    break
                is_read = op == LIST
                loop_slot[depth] = code[pc + 1] if is_read else -1
                loop_body[depth] = pc + 3 if is_read else pc + 2
                loop_total[depth] = 0
                loop_left[depth] = 1
                depth += 1
                pc = code[pc + 2] - 1 if is_read else code[pc + 1] - 1  # to NEXT, which begins the first block
            elif op == NEXT:
                top = depth - 1
                loop_left[top] -= 1
                if loop_left[top] > 0:
                    pc = loop_body[top]
                    continue
                value, position = varint(data, position, end)
                if position < 0:
                    error = TRUNCATED
                    break
                if value < 0:
                    size, position = varint(data, position, end)
                    if position < 0:
                        error = TRUNCATED
                        break
                    if value == -9223372036854775808 or size < 0 or size > end - position:
                        error = TRUNCATED
                        break
                    value = -value
                    if loop_slot[top] < 0:  # passed over as a whole
                        position += size
                        loop_left[top] = 1
                        continue
                if value > end - position:
                    error = TOO_MANY
                    break
                if value > 0:
                    loop_total[top] += value
                    loop_left[top] = value
                    pc = loop_body[top]
                    continue
                depth = top
                slot = loop_slot[top]
                if slot >= 0:
                    at = counts[slot]
                    if at >= capacity:
                        full = True
                        break
                    counts[slot] = at + 1
                    valid[slot, at] = 1
                    first[slot, at] = loop_total[top]
                pc += 1
            elif op == JUMP:
                pc = code[pc + 1]
            elif op == SKIP_VARINT:
                value, position = varint(data, position, end)
                if position < 0:
                    error = TRUNCATED
                    break
                pc += 1
            elif op in (SKIP_BYTES, SKIP_FIXED):
                if op == SKIP_BYTES:
                    size, position = varint(data, position, end)
                    if position < 0:
                        error = TRUNCATED
                        break
                    pc += 1
                else:
                    size = code[pc + 1]
                    pc += 2
                if size < 0 or size > end - position:
                    error = TRUNCATED
                    break
                position += size
            elif op == CALL:
                if called == DEPTH_MAX:
                    error = TOO_DEEP
                    break
                calls[called] = pc + 2
                called += 1
                pc = code[pc + 1]
            elif op == RETURN:
                called -= 1
                pc = calls[called]
            elif op == FAIL:
                error = FAILED
                detail = code[pc + 1]
                break
            else:  # END
                running = False
        if full or error != OK or pc < 0:
            for slot in range(slots):
                counts[slot] = saved[slot]
            if full:
                return row
            if error != OK:
                errors[row] = error
                details[row] = detail
                if chained:
                    for again in range(row + 1, len(starts)):
                        entries[again] = -1
            for index in range(len(root_nulls)):
                slot = root_nulls[index]
                at = counts[slot]
                if at >= capacity:
                    for again in range(slots):
                        counts[again] = saved[again]
                    return row
                counts[slot] = at + 1
                valid[slot, at] = 0
                first[slot, at] = 0
                second[slot, at] = 0
        if chained and row + 1 < len(starts):
            starts[row + 1] = position
    return len(starts)


@kernel
def gather(data: Any, constants: Any, starts: Any, sizes: Any, valid: Any, offsets: Any, out: Any) -> None:
    """Concatenate the bytes of a slot; `offsets` are Arrow's offsets."""
    for row in range(len(starts)):
        at = offsets[row]
        if not valid[row]:
            continue
        start = starts[row]
        size = sizes[row]
        if start < 0:
            start = -1 - start
            for index in range(size):
                out[at + index] = constants[start + index]
        else:
            for index in range(size):
                out[at + index] = data[start + index]
