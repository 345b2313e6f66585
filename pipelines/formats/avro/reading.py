"""Programs that read values of a writer's schema as a reader's schema, by Avro's schema resolution. Pure.

All programs of a `Reading` write to the slots of one reader's schema, so a batch with values of several writers is
decoded in one pass. `decode_kernel` defines the numbers of a program.

Beyond Avro's specification: timestamps keep their meaning if the units of their logical types differ. A branch of a
writer's union that the reader cannot represent is refused for the values that use it, not for the whole schema.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Any, Final

from headwater.pipelines.formats.avro import decode_kernel as op
from headwater.pipelines.formats.avro.columns import Node, columns, decimal_of, logical
from headwater.pipelines.schemas.avro.resolution import PROMOTIONS
from headwater.pipelines.schemas.avro.types import (
    ABSENT,
    ArrayType,
    AvroType,
    EnumType,
    Field,
    FixedType,
    MapType,
    PrimitiveType,
    RecordType,
    UnionType,
    type_name,
)

CODE_MAX: Final = 5_000_000  # numbers of all programs: writers' schemas are others' work

_MOMENTS: Final = ("timestamp-", "local-timestamp-")
_UNITS: Final = {"millis": op.THOUSAND, "micros": op.AS_IS, "nanos": op.THOUSANDTH}
_BIT_64: Final = 1 << 64


class UnreadableError(ValueError):
    """A schema cannot be resolved; the message names the field and the reason."""


@dataclass(slots=True)
class Reading:
    """A reader's schema as columns, and the programs of the added writers. `messages` are the texts of FAIL.

    `is_lenient` is for readers derived from columns: names of types are ignored, and enums are texts.
    """

    reader: AvroType
    is_lenient: bool = False
    root: Node = field(init=False)
    code: list[int] = field(default_factory=list)
    table: list[int] = field(default_factory=list)
    constants: bytearray = field(default_factory=bytearray)
    messages: list[str] = field(default_factory=list)
    writer_symbols: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Build the columns. Raises ValueError if a part of the reader's schema does not map to a column."""
        self.root = columns(self.reader)

    def add(self, writer: AvroType) -> int:
        """Add a writer; returns the start of its program. Raises UnreadableError if none of its values can be read."""
        begin = len(self.code)
        program = _Program(self)
        try:
            program.read(writer, self.root)
            self.code.append(op.END)
            program.subroutines()
        except UnreadableError:
            del self.code[begin:]
            raise
        return begin

    def symbols(self, node: Node) -> list[str]:
        """Return an enum's symbols by number."""
        assert isinstance(node.type, EnumType)
        return node.type.symbols


class _Program:
    """The program of one writer, while it is built."""

    def __init__(self, reading: Reading) -> None:
        self._out = reading
        self._code = reading.code
        self._calls: list[tuple[int, RecordType]] = []  # places that shall hold the start of a record's subroutine
        self._starts: dict[int, int] = {}

    def _emit(self, *numbers: int) -> int:
        """Append to the program; returns the index of the last number."""
        if len(self._code) > CODE_MAX:
            raise UnreadableError("the schema is too large")
        self._code.extend(numbers)
        return len(self._code) - 1

    # -- values that the reader wants ----------------------------------------------------------------------------------

    def read(self, writer: AvroType, node: Node) -> None:
        """Emit the code that reads a writer's value into a node."""
        if isinstance(writer, UnionType):
            self._union(writer, node)
        elif writer.kind == "null":
            if not node.nullable:
                raise _unreadable(node, "the writer has null there, and the reader must have a value")
            nulls = node.nulls()
            self._emit(op.NULLS, len(nulls), *nulls)
        else:
            self._value(writer, node)

    def _union(self, writer: UnionType, node: Node) -> None:
        self._emit(op.UNION, len(writer.branches))
        targets = len(self._code)
        self._emit(*[0] * len(writer.branches))
        jumps = []
        readable = False
        why = _unreadable(node, "the writer has an empty union there")
        for index, branch in enumerate(writer.branches):
            begin = len(self._code)
            self._code[targets + index] = begin
            try:
                self.read(branch, node)
                readable = readable or branch.kind != "null" or len(writer.branches) == 1
            except UnreadableError as error:
                del self._code[begin:]
                why = error
                self._out.messages.append(str(error))
                self._emit(op.FAIL, len(self._out.messages) - 1)
            else:
                jumps.append(self._emit(op.JUMP, 0))
        if not readable:
            raise why
        for place in jumps:
            self._code[place] = len(self._code)

    def _value(self, writer: AvroType, node: Node) -> None:
        reader = node.type
        match reader, writer:
            case RecordType(), RecordType():
                self._check_name(writer, node)
                self._record(writer, reader, node)
            case EnumType(), EnumType():
                self._check_name(writer, node)
                self._enum(writer, reader, node)
            case ArrayType(), ArrayType(items):
                place = self._emit(op.LIST, node.slot, 0)
                self.read(items, node.children[0])
                self._code[place] = self._emit(op.NEXT) + 1
            case MapType(), MapType(values):
                place = self._emit(op.LIST, node.slot, 0)
                self._emit(op.BYTES, node.children[0].slot, 1)
                self.read(values, node.children[1])
                self._code[place] = self._emit(op.NEXT) + 1
            case ((PrimitiveType() | FixedType()), (PrimitiveType() | FixedType())) if node.sql == "DECIMAL":
                self._decimal(writer, node)
            case FixedType(size=size), FixedType():
                self._check_name(writer, node)
                if size != writer.size:
                    raise _unreadable(node, f"the reader has {size} bytes there, the writer {writer.size}")
                self._emit(op.FIXED, node.slot, size)
            case PrimitiveType(kind="bytes"), FixedType(size=size) if self._out.is_lenient:
                self._emit(op.FIXED, node.slot, size)
            case PrimitiveType(kind="string"), EnumType(symbols=symbols) if self._out.is_lenient:
                self._symbols(symbols, node)
            case PrimitiveType(), PrimitiveType():
                self._primitive(writer, reader, node)
            case _:
                raise _mismatch(node, writer)

    def _check_name(self, writer: RecordType | EnumType | FixedType, node: Node) -> None:
        reader = node.type
        assert isinstance(reader, RecordType | EnumType | FixedType)
        if self._out.is_lenient or reader.name.simple == writer.name.simple or writer.name in reader.aliases:
            return
        raise _unreadable(node, f"the reader has {reader.name.full} there, the writer {writer.name.full}")

    def _record(self, writer: RecordType, reader: RecordType, node: Node) -> None:
        targets: dict[str, list[Node]] = {}
        missing: list[tuple[Field, Node]] = []
        written = {part.name for part in writer.fields}
        for part, child in zip(reader.fields, node.children, strict=True):
            source = next((name for name in (part.name, *part.aliases) if name in written), None)
            if source is not None and source not in targets:
                targets[source] = [child]
            elif part.default is not ABSENT:
                missing.append((part, child))
            else:
                raise _unreadable(child, "it has no default in the reader's schema, and the writer does not have it")
        self._emit(op.VALID, node.slot)
        for part in writer.fields:
            for child in targets.get(part.name, ()):
                self.read(part.type, child)
            if part.name not in targets:
                self._skip(part.type)
        for part, child in missing:
            self._default(part.default, part.type, child)

    def _enum(self, writer: EnumType, reader: EnumType, node: Node) -> None:
        numbers = {symbol: number for number, symbol in enumerate(reader.symbols)}
        instead = numbers[reader.default] if reader.default is not None else None
        out = self._out
        self._emit(op.ENUM, node.slot, len(out.table), len(writer.symbols))
        for symbol in writer.symbols:
            number = numbers.get(symbol, instead)
            if number is None:
                out.messages.append(f"{_place(node)}the reader's enum does not have the symbol {symbol}, nor a default")
                number = -len(out.messages)
            out.table.append(number)

    def _symbols(self, symbols: list[str], node: Node) -> None:
        """Emit the code that maps a symbol's number to a text constant, like a union's branch number to its code."""
        self._emit(op.UNION, len(symbols))
        targets = len(self._code)
        self._emit(*[0] * len(symbols))
        jumps = []
        for index, symbol in enumerate(symbols):
            self._code[targets + index] = len(self._code)
            self._bytes(symbol.encode(), node)
            jumps.append(self._emit(op.JUMP, 0))
        for place in jumps:
            self._code[place] = len(self._code)

    def _decimal(self, writer: PrimitiveType | FixedType, node: Node) -> None:
        if writer.kind not in ("bytes", "fixed"):
            raise _mismatch(node, writer)
        is_other_kind = writer.kind != node.type.kind
        if is_other_kind and not self._out.is_lenient:
            raise _mismatch(node, writer)
        found = decimal_of(writer)
        if found is not None and found[1] != node.scale:
            raise _unreadable(node, f"the reader's decimal has the scale {node.scale}, the writer's {found[1]}")
        if isinstance(node.type, FixedType) and isinstance(writer, FixedType):
            self._check_name(writer, node)
            if node.type.size != writer.size:
                raise _unreadable(node, f"the reader has {node.type.size} bytes there, the writer {writer.size}")
        size = writer.size if isinstance(writer, FixedType) else -1
        self._emit(op.DECIMAL, node.slot, size, *_halves(10**node.precision))

    def _primitive(self, writer: PrimitiveType, reader: PrimitiveType, node: Node) -> None:
        if writer.kind != reader.kind and writer.kind not in PROMOTIONS.get(reader.kind, ()):
            raise _mismatch(node, writer)
        match reader.kind:
            case "boolean":
                self._emit(op.BOOLEAN, node.slot)
            case "bytes" | "string":
                self._emit(op.BYTES, node.slot, int(reader.kind == "string"))
            case "int" | "long":
                self._emit(op.INT if writer.kind == "int" else op.LONG, node.slot, _unit(writer, reader))
            case _ if writer.kind in ("int", "long"):
                self._emit(op.INT if writer.kind == "int" else op.LONG, node.slot, op.FLOATING)
            case _:
                self._emit(op.FLOAT if writer.kind == "float" else op.DOUBLE, node.slot)

    # -- defaults ------------------------------------------------------------------------------------------------------

    def _default(self, value: Any, kind: AvroType, node: Node) -> None:
        """Emit the reader's default of a field that the writer lacks."""
        if value is None:
            if not node.nullable:
                raise _unreadable(node, "its default is null, which its type is not")
            nulls = node.nulls()
            self._emit(op.NULLS, len(nulls), *nulls)
            return
        try:
            self._constant(value, kind, node)
        except (TypeError, ValueError, KeyError, AttributeError, struct.error, OverflowError) as error:
            if isinstance(error, UnreadableError):
                raise
            raise _unreadable(node, "its default does not fit its type") from None

    def _constant(self, value: Any, kind: AvroType, node: Node) -> None:
        reader = node.type
        if isinstance(kind, UnionType) and node.value_branch < 0:
            raise _unreadable(node, "its default does not fit its type")
        if isinstance(reader, RecordType):
            self._emit(op.VALID, node.slot)
            for part, child in zip(reader.fields, node.children, strict=True):
                given = value.get(part.name, part.default)
                if given is ABSENT:
                    raise _unreadable(child, "its record's default does not have it")
                self._default(given, part.type, child)
        elif isinstance(reader, ArrayType | MapType):
            items = reader.items if isinstance(reader, ArrayType) else reader.values
            for key in value:
                if isinstance(reader, MapType):
                    self._bytes(key.encode(), node.children[0])
                self._default(key if isinstance(reader, ArrayType) else value[key], items, node.children[-1])
            self._emit(op.CONSTANT, node.slot, len(value), 0)
        elif isinstance(reader, EnumType):
            self._emit(op.CONSTANT, node.slot, reader.symbols.index(value), 0)
        elif node.sql == "DECIMAL":
            number = int.from_bytes(value.encode("latin-1"), "big", signed=True)
            if abs(number) >= 10**node.precision:
                raise ValueError(value)
            self._emit(op.CONSTANT, node.slot, *_halves(number))
        elif reader.kind in ("bytes", "fixed"):
            self._bytes(value.encode("latin-1"), node)
        elif reader.kind == "string":
            self._bytes(value.encode(), node)
        elif reader.kind in ("float", "double"):
            (bits,) = struct.unpack("<q", struct.pack("<d", float(value)))
            self._emit(op.CONSTANT, node.slot, bits, 0)
        else:
            assert isinstance(reader, PrimitiveType)
            number = int(value)
            unit = _unit(reader, reader)
            number = number * 1000 if unit == op.THOUSAND else number // 1000 if unit == op.THOUSANDTH else number
            struct.pack("<q", number)
            self._emit(op.CONSTANT, node.slot, number, 0)

    def _bytes(self, value: bytes, node: Node) -> None:
        self._emit(op.CONSTANT_BYTES, node.slot, len(self._out.constants), len(value))
        self._out.constants += value

    # -- values that nobody wants --------------------------------------------------------------------------------------

    def _skip(self, writer: AvroType) -> None:
        match writer:
            case UnionType(branches):
                self._emit(op.UNION, len(branches))
                targets = len(self._code)
                self._emit(*[0] * len(branches))
                jumps = []
                for index, branch in enumerate(branches):
                    self._code[targets + index] = len(self._code)
                    self._skip(branch)
                    jumps.append(self._emit(op.JUMP, 0))
                for place in jumps:
                    self._code[place] = len(self._code)
            case RecordType():
                self._calls.append((self._emit(op.CALL, 0), writer))
            case ArrayType(items):
                place = self._emit(op.SKIP_LIST, 0)
                self._skip(items)
                self._code[place] = self._emit(op.NEXT) + 1
            case MapType(values):
                place = self._emit(op.SKIP_LIST, 0)
                self._emit(op.SKIP_BYTES)
                self._skip(values)
                self._code[place] = self._emit(op.NEXT) + 1
            case FixedType(size=size):
                self._emit(op.SKIP_FIXED, size)
            case EnumType():
                self._emit(op.SKIP_VARINT)
            case PrimitiveType(kind):
                match kind:
                    case "null":
                        pass
                    case "boolean":
                        self._emit(op.SKIP_FIXED, 1)
                    case "int" | "long":
                        self._emit(op.SKIP_VARINT)
                    case "float" | "double":
                        self._emit(op.SKIP_FIXED, 4 if kind == "float" else 8)
                    case _:
                        self._emit(op.SKIP_BYTES)

    def subroutines(self) -> None:
        """Append a subroutine that skips each record; records may contain themselves, hence the calls."""
        while self._calls:
            place, record = self._calls.pop()
            if id(record) not in self._starts:
                self._starts[id(record)] = len(self._code)
                for part in record.fields:
                    self._skip(part.type)
                self._emit(op.RETURN)
            self._code[place] = self._starts[id(record)]


def _unit(writer: PrimitiveType, reader: PrimitiveType) -> int:
    """Return the conversion of a whole number: timestamps are converted to microseconds."""
    own = logical(reader)
    prefix = next((prefix for prefix in _MOMENTS if own.startswith(prefix)), None)
    if prefix is None or reader.kind != "long":
        return op.AS_IS
    theirs = logical(writer)
    unit = theirs if theirs.startswith(_MOMENTS) else own
    return _UNITS.get(unit.rpartition("-")[2], op.AS_IS)


def _halves(number: int) -> tuple[int, int]:
    """Return the lower and the upper 64 bits, as signed numbers."""
    halves = (number % _BIT_64, number // _BIT_64 % _BIT_64)
    low, high = (half - _BIT_64 if half >= _BIT_64 // 2 else half for half in halves)
    return low, high


def _place(node: Node) -> str:
    return f"field {node.path.removeprefix('$.')}: " if node.path != "$" else ""


def _unreadable(node: Node, why: str) -> UnreadableError:
    return UnreadableError(f"{_place(node)}{why}")


def _mismatch(node: Node, writer: AvroType) -> UnreadableError:
    own, theirs = type_name(node.type), type_name(writer)
    if own == theirs:
        own = node.sql.lower()
    return _unreadable(node, f"{theirs}, as the writer has it, cannot be read as {own}")
