"""Schema resolution: does a reader with one schema understand what another one wrote?

The rules are those of Avro's specification ("Schema Resolution"); the kinds of problems have the names of Avro's Java
library, which Confluent's registry shows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, TypeAlias

from pipelines.schemas.avro.types import (
    ABSENT,
    ArrayType,
    AvroType,
    EnumType,
    Field,
    FixedType,
    MapType,
    NamedType,
    RecordType,
    UnionType,
    type_name,
)
from pipelines.schemas.errors import PROBLEMS_MAX, InvalidSchemaError, Problem

PROMOTIONS: Final = {
    "long": ("int",),
    "float": ("int", "long"),
    "double": ("int", "long", "float"),
    "string": ("bytes",),
    "bytes": ("string",),
}
"""What a reader of a type also takes."""

PAIRS_MAX: Final = 200_000
"""Pairs of types in one comparison; a schema of a mebibyte has some 30,000 fields."""

_Pair: TypeAlias = tuple[AvroType, AvroType]
_PairId: TypeAlias = tuple[int, int]


@dataclass(frozen=True, slots=True)
class _Part:
    """What has to resolve for a pair to resolve: one of some pairs. `union` says that they are a reader's branches."""

    path: str
    alternatives: list[_Pair]
    union: bool = False


def problems(reader: AvroType, writer: AvroType) -> list[Problem]:
    """Return why `reader` cannot resolve `writer`; empty when it can.

    Raises:
        InvalidSchemaError: the schemas are too large to be compared.
    """
    resolving = _resolving(reader, writer)
    found = []
    for problem in _told((reader, writer), "/", resolving, set()):
        found.append(problem)
        if len(found) == PROBLEMS_MAX:
            break
    return found


def _id(pair: _Pair) -> _PairId:
    return id(pair[0]), id(pair[1])


def _resolving(reader: AvroType, writer: AvroType) -> dict[_PairId, bool]:
    """Decide every pair that the comparison comes to.

    Types may contain themselves, so a pair may depend on itself: all count as resolving first, and those that cannot
    take with them what depends on them, until nothing changes.
    """
    resolving: dict[_PairId, bool] = {}
    needs: dict[_PairId, list[list[_PairId]]] = {}
    dependents: dict[_PairId, list[_PairId]] = {}
    failed: list[_PairId] = []
    todo: list[_Pair] = [(reader, writer)]
    while todo:
        pair = todo.pop()
        this = _id(pair)
        if this in resolving:
            continue
        if len(resolving) == PAIRS_MAX:
            raise InvalidSchemaError(f"comparing the two schemas takes more than {PAIRS_MAX} comparisons of types")
        resolving[this] = next(_local(*pair, ""), None) is None
        if not resolving[this]:
            failed.append(this)
            continue
        needs[this] = []
        for part in _parts(*pair):
            needs[this].append([_id(alternative) for alternative in part.alternatives])
            todo.extend(part.alternatives)
            for alternative in part.alternatives:
                dependents.setdefault(_id(alternative), []).append(this)
            if not part.alternatives:
                resolving[this] = False
                failed.append(this)
    while failed:
        for dependent in dependents.get(failed.pop(), ()):
            if resolving[dependent] and not all(any(resolving[a] for a in part) for part in needs[dependent]):
                resolving[dependent] = False
                failed.append(dependent)
    return resolving


def _told(pair: _Pair, path: str, resolving: dict[_PairId, bool], seen: set[_PairId]) -> Iterator[Problem]:
    """Yield the problems of a pair and of what it is made of, each pair at the first place it is come to."""
    if resolving[_id(pair)] or _id(pair) in seen:
        return
    seen.add(_id(pair))
    local = list(_local(*pair, path))
    yield from local
    if local and not isinstance(pair[0], RecordType):
        return
    for part in _parts(*pair):
        where = path + part.path
        if not part.union:
            # What a pair with problems of its own is made of was not looked at.
            inner = part.alternatives[0]
            if _id(inner) not in resolving:
                resolving |= _resolving(*inner)
            yield from _told(inner, where, resolving, seen)
        elif not any(resolving[_id(choice)] or _id(choice) in seen for choice in part.alternatives):
            # A branch that was come to before has its problems told there.
            written = pair[1] if not isinstance(pair[1], UnionType) else pair[1].branches[int(part.path.rstrip("/"))]
            text = f"the reader's union has no branch that understands {type_name(written)}"
            yield Problem("MISSING_UNION_BRANCH", where, text)


def _parts(reader: AvroType, writer: AvroType) -> Iterator[_Part]:
    if isinstance(writer, UnionType):
        for index, branch in enumerate(writer.branches):
            if isinstance(reader, UnionType):
                yield _Part(f"{index}/", _choices(reader, branch), union=True)
            else:
                yield _Part("", [(reader, branch)])
        return
    match reader, writer:
        case UnionType(), _:
            yield _Part("", _choices(reader, writer), union=True)
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


def _choices(reader: UnionType, writer: AvroType) -> list[_Pair]:
    """Return the branches that could be meant; the others differ in kind or name, whatever their parts are."""
    named = (EnumType, FixedType, RecordType)
    promoted = [choice for choice in reader.branches if writer.kind in (choice.kind, *PROMOTIONS.get(choice.kind, ()))]
    if not isinstance(writer, named):
        return [(choice, writer) for choice in promoted]
    return [
        (choice, writer)
        for choice in promoted
        if isinstance(choice, named) and (choice.name.simple == writer.name.simple or writer.name in choice.aliases)
    ]


def _local(reader: AvroType, writer: AvroType, path: str) -> Iterator[Problem]:
    """Yield what is wrong with a pair whatever its parts are."""
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
            missing = [symbol for symbol in writer.symbols if symbol not in reader.symbols]
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
    if reader.name.simple != writer.name.simple and writer.name not in reader.aliases:
        text = f"the reader expects {reader.name.full}, the writer wrote {writer.name.full}"
        yield Problem("NAME_MISMATCH", f"{path}name", text)


def _source(field: Field, written: dict[str, Field]) -> Field | None:
    for name in (field.name, *field.aliases):
        if name in written:
            return written[name]
    return None
