"""Schema resolution: whether a reader's schema can read data of a writer's schema.

The rules are those of Avro's specification ("Schema Resolution"); the kinds of problems have the names of Avro's Java
library, which Confluent's registry reports.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, TypeAlias

from headwater.pipelines.schemas.avro.types import (
    ABSENT,
    ArrayType,
    AvroType,
    EnumType,
    Field,
    FixedType,
    MapType,
    Name,
    NamedType,
    RecordType,
    UnionType,
    type_name,
)
from headwater.pipelines.schemas.errors import PROBLEMS_MAX, InvalidSchemaError, Problem

PROMOTIONS: Final = {
    "long": ("int",),
    "float": ("int", "long"),
    "double": ("int", "long", "float"),
    "string": ("bytes",),
    "bytes": ("string",),
}
"""The writer's types that a reader's type accepts as well."""

PAIRS_MAX: Final = 200_000
"""Pairs of types in one comparison; a schema of a mebibyte has some 30,000 fields."""

STEPS_MAX: Final = 400_000
"""Fields, symbols and possible branches in one comparison: a large type may be part of many pairs."""

_Pair: TypeAlias = tuple[AvroType, AvroType]
_PairId: TypeAlias = tuple[int, int]


@dataclass(frozen=True, slots=True)
class _Part:
    """A requirement of a pair: at least one alternative must resolve. `union` marks branches of a reader's union."""

    path: str
    alternatives: list[_Pair]
    union: bool = False


def problems(reader: AvroType, writer: AvroType) -> list[Problem]:
    """Return why `reader` cannot resolve `writer`; empty if it can.

    Raises:
        InvalidSchemaError: the schemas are too large to be compared.
    """
    comparison = _Comparison()
    found = []
    try:
        for problem in comparison.told((reader, writer), "/", set()):
            found.append(problem)
            if len(found) == PROBLEMS_MAX:
                break
    except RecursionError:
        raise InvalidSchemaError("the types of the schema use each other too deeply to be compared") from None
    return found


def _id(pair: _Pair) -> _PairId:
    return id(pair[0]), id(pair[1])


class _Comparison:
    """Decisions about pairs of types; linear in the number of visited pairs and their alternatives.

    Types may contain themselves, so a pair may depend on itself. All pairs start as resolving; a pair that fails makes
    its dependents fail, until a fixed point is reached. Invariant: between calls of `decide`, all entries of
    `resolving` are final.
    """

    def __init__(self) -> None:
        self.resolving: dict[_PairId, bool] = {}
        #: The parts that a pair is an alternative of: whose part it is, and which.
        self._uses: dict[_PairId, list[tuple[_PairId, int]]] = {}
        #: Alternatives of a pair's parts that may still resolve.
        self._open: dict[_PairId, list[int]] = {}
        self._steps = 0

    def decide(self, pair: _Pair) -> bool:
        """Decide whether a pair resolves, including every pair on which it depends."""
        failed: list[_PairId] = []
        todo = [pair]
        while todo:
            todo.extend(self._enter(todo.pop(), failed))
        while failed:
            for user, part in self._uses.pop(failed.pop(), ()):
                self._open[user][part] -= 1
                if self._open[user][part] == 0 and self.resolving[user]:
                    self.resolving[user] = False
                    failed.append(user)
        return self.resolving[_id(pair)]

    def _enter(self, pair: _Pair, failed: list[_PairId]) -> list[_Pair]:
        """Register a pair; return the pairs on which it depends."""
        this = _id(pair)
        if this in self.resolving:
            return []
        if len(self.resolving) == PAIRS_MAX:
            raise _too_large(PAIRS_MAX)
        self._count(_size(pair[0]) + _size(pair[1]))
        self.resolving[this] = next(_local(*pair, ""), None) is None
        if not self.resolving[this]:
            failed.append(this)
            return []
        inner: list[_Pair] = []
        self._open[this] = []
        for index, part in enumerate(_parts(*pair)):
            self._count(len(part.alternatives))
            open_alternatives = 0
            for alternative in part.alternatives:
                if self.resolving.get(_id(alternative), True):
                    open_alternatives += 1
                    self._uses.setdefault(_id(alternative), []).append((this, index))
            self._open[this].append(open_alternatives)
            if open_alternatives == 0:
                self.resolving[this] = False
                failed.append(this)
                return inner
            inner.extend(part.alternatives)
        return inner

    def _count(self, steps: int) -> None:
        self._steps += steps
        if self._steps > STEPS_MAX:
            raise _too_large(STEPS_MAX)

    def told(self, pair: _Pair, path: str, seen: set[_PairId]) -> Iterator[Problem]:
        """Yield the problems of a pair and of its parts, each pair at the first place visited."""
        # What a pair with problems of its own is made of was not looked at.
        if self.decide(pair) or _id(pair) in seen:
            return
        seen.add(_id(pair))
        local = list(_local(*pair, path))
        yield from local
        if local and not isinstance(pair[0], RecordType):
            return
        for part in _parts(*pair):
            where = path + part.path
            if not part.union:
                yield from self.told(part.alternatives[0], where, seen)
            elif not any(self.decide(choice) or _id(choice) in seen for choice in part.alternatives):
                # A branch that was come to before has its problems told there.
                written = pair[1]
                if isinstance(written, UnionType):
                    written = written.branches[int(part.path.rstrip("/"))]
                text = f"the reader's union has no branch that understands {type_name(written)}"
                yield Problem("MISSING_UNION_BRANCH", where, text)


def _size(avro_type: AvroType) -> int:
    """Return the number of parts that a comparison visits."""
    match avro_type:
        case RecordType():
            return len(avro_type.fields)
        case EnumType():
            return len(avro_type.symbols)
        case _:
            return 1


def _too_large(limit: int) -> InvalidSchemaError:
    return InvalidSchemaError(f"comparing the two schemas takes more than {limit} comparisons of types")


def _parts(reader: AvroType, writer: AvroType) -> Iterator[_Part]:
    if isinstance(writer, UnionType):
        choices = _Branches(reader) if isinstance(reader, UnionType) else None
        for index, branch in enumerate(writer.branches):
            if choices is not None:
                yield _Part(f"{index}/", choices.meant(branch), union=True)
            else:
                yield _Part("", [(reader, branch)])
        return
    match reader, writer:
        case UnionType(), _:
            yield _Part("", _Branches(reader).meant(writer), union=True)
        case ArrayType(items), ArrayType(written):
            yield _Part("items/", [(items, written)])
        case MapType(values), MapType(written):
            yield _Part("values/", [(values, written)])
        case RecordType(), RecordType():
            sources = {field.name: field for field in writer.fields}
            for index, field in enumerate(reader.fields):
                source = _source(field, sources)
                if source is not None:
                    yield _Part(f"fields/{index}/type/", [(field.type, source.type)])


class _Branches:
    """The branches of a reader's union, indexed by a writer's kind or name."""

    def __init__(self, reader: UnionType) -> None:
        self._by_kind: dict[str, AvroType] = {}
        self._by_name: dict[tuple[str, str | Name], list[NamedType]] = {}
        for branch in reader.branches:
            if isinstance(branch, EnumType | FixedType | RecordType):
                keys: set[str | Name] = {branch.name.simple, *branch.aliases}
                for key in keys:
                    self._by_name.setdefault((branch.kind, key), []).append(branch)
            else:
                self._by_kind[branch.kind] = branch

    def meant(self, writer: AvroType) -> list[_Pair]:
        """Return the branches that may match; all other branches differ in kind or name, whatever their parts are."""
        if not isinstance(writer, EnumType | FixedType | RecordType):
            kinds = [kind for kind in self._by_kind if writer.kind in (kind, *PROMOTIONS.get(kind, ()))]
            return [(self._by_kind[kind], writer) for kind in kinds]
        found = [
            *self._by_name.get((writer.kind, writer.name.simple), ()),
            *self._by_name.get((writer.kind, writer.name), ()),
        ]
        return [(branch, writer) for branch in dict.fromkeys(found)]


def _local(reader: AvroType, writer: AvroType, path: str) -> Iterator[Problem]:
    """Yield the problems of a pair itself, without those of its parts."""
    if isinstance(writer, UnionType) or isinstance(reader, UnionType):
        return
    match reader, writer:
        case FixedType(), FixedType():
            yield from _names(reader, writer, path)
            if reader.size != writer.size:
                text = f"the reader expects {reader.size} bytes, the writer wrote {writer.size}"
                yield Problem("FIXED_SIZE_MISMATCH", f"{path}size", text)
        case EnumType(), EnumType():
            yield from _names(reader, writer, path)
            missing = [symbol for symbol in writer.symbols if symbol not in reader.symbol_set]
            if missing and reader.default is None:
                text = f"the reader lacks the symbols {', '.join(missing)} and has no default for them"
                yield Problem("MISSING_ENUM_SYMBOLS", f"{path}symbols", text)
        case RecordType(), RecordType():
            yield from _names(reader, writer, path)
            sources = {field.name: field for field in writer.fields}
            for index, field in enumerate(reader.fields):
                if _source(field, sources) is None and field.default is ABSENT:
                    text = f"the field {field.name} has no default in the reader and is missing in the writer"
                    yield Problem("READER_FIELD_MISSING_DEFAULT_VALUE", f"{path}fields/{index}", text)
        case _ if reader.kind != writer.kind and writer.kind not in PROMOTIONS.get(reader.kind, ()):
            text = f"a reader of {type_name(reader)} does not understand {type_name(writer)}"
            yield Problem("TYPE_MISMATCH", path, text)


def _names(reader: NamedType, writer: NamedType, path: str) -> Iterator[Problem]:
    if reader.name.simple != writer.name.simple and writer.name not in reader.alias_set:
        text = f"the reader expects {reader.name.full}, the writer wrote {writer.name.full}"
        yield Problem("NAME_MISMATCH", f"{path}name", text)


def _source(field: Field, written: dict[str, Field]) -> Field | None:
    for name in (field.name, *field.aliases):
        if name in written:
            return written[name]
    return None
