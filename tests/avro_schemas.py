"""Avro schemas of any shape, what becomes of them in a few changes, and values of theirs."""

from __future__ import annotations

import copy
from typing import Any

from hypothesis import strategies as st

PRIMITIVES = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "null": st.none(),
    "boolean": st.booleans(),
    "int": st.integers(-(2**31), 2**31 - 1),
    "long": st.integers(-(2**63), 2**63 - 1),
    "float": st.floats(width=32, allow_nan=False),
    "double": st.floats(allow_nan=False),
    # Only ASCII: bytes that are no UTF-8 are no text for a reader of strings.
    "bytes": st.text(st.characters(max_codepoint=127), max_size=4).map(str.encode),
    "string": st.text(max_size=4),
}
DEFAULTS = {
    "null": None, "boolean": False, "int": 1, "long": 2, "float": 1.5, "double": 2.5, "bytes": "b", "string": "s",
}  # fmt: skip


class Names:
    """Names of types, none of them twice."""

    def __init__(self) -> None:
        self.count = 0

    def next(self) -> str:
        self.count += 1
        return f"T{self.count}"


@st.composite
def schemas(draw: st.DrawFn, names: Names | None = None, depth: int = 0) -> Any:
    names = names or Names()
    kinds = ["primitive"] * 3 + (["record", "record", "array", "map", "union", "enum", "fixed"] if depth < 3 else [])
    kind = draw(st.sampled_from(kinds)) if depth else "record"
    if kind == "record":
        name = names.next()
        fields = []
        for index in range(draw(st.integers(0, 3))):
            field = {"name": f"f{index}", "type": draw(schemas(names, depth + 1))}
            if isinstance(field["type"], str) and draw(st.booleans()):
                field["default"] = DEFAULTS[field["type"]]
            fields.append(field)
        return {"type": "record", "name": name, "fields": fields}
    if kind in ("array", "map"):
        return {"type": kind, "items" if kind == "array" else "values": draw(schemas(names, depth + 1))}
    if kind == "union":
        return draw(st.lists(st.sampled_from(PRIMITIVES), min_size=1, max_size=3, unique=True))
    if kind == "enum":
        symbols = draw(st.lists(st.sampled_from("ABCD"), min_size=1, unique=True))
        default = {"default": symbols[0]} if draw(st.booleans()) else {}
        return {"type": "enum", "name": names.next(), "symbols": symbols, **default}
    if kind == "fixed":
        return {"type": "fixed", "name": names.next(), "size": draw(st.integers(1, 3))}
    return draw(st.sampled_from(PRIMITIVES))


def places(schema: Any) -> list[tuple[Any, Any]]:
    """Every place inside a schema that holds a type: its holder and the key there."""
    found: list[tuple[Any, Any]] = []
    if isinstance(schema, dict):
        if schema["type"] == "record":
            for field in schema["fields"]:
                found += [(field, "type"), *places(field["type"])]
        for key in ("items", "values"):
            if key in schema:
                found += [(schema, key), *places(schema[key])]
    return found


def types(schema: Any, kind: str) -> list[Any]:
    candidates = [schema, *(holder[key] for holder, key in places(schema))]
    return [found for found in candidates if isinstance(found, dict) and found["type"] == kind]


@st.composite
def changed(draw: st.DrawFn, schema: Any) -> Any:
    """The schema after a few changes, harmless ones and others."""
    schema = copy.deepcopy(schema)
    for _ in range(draw(st.integers(0, 3))):
        change = draw(st.sampled_from(["type", "null", "add", "drop", "symbol", "alias", "required"]))
        here = places(schema)
        records, enums = types(schema, "record"), types(schema, "enum")
        if change == "type" and here:
            holder, key = draw(st.sampled_from(here))
            holder[key] = draw(st.sampled_from(PRIMITIVES))
            holder.pop("default", None)
        elif change == "null" and here:
            holder, key = draw(st.sampled_from(here))
            if not isinstance(holder[key], list) and holder[key] != "null":
                holder[key] = ["null", holder[key]]
                holder.pop("default", None)
        elif change == "add" and records:
            of = draw(st.sampled_from(PRIMITIVES))
            draw(st.sampled_from(records))["fields"].append(
                {"name": f"n{draw(st.integers(0, 99))}", "type": of, "default": DEFAULTS[of]}
            )
        elif change == "required" and records:
            draw(st.sampled_from(records))["fields"].append({"name": f"r{draw(st.integers(0, 99))}", "type": "int"})
        elif change == "drop" and records:
            fields = draw(st.sampled_from(records))["fields"]
            if fields:
                fields.pop(draw(st.integers(0, len(fields) - 1)))
        elif change == "symbol" and enums:
            enum = draw(st.sampled_from(enums))
            if draw(st.booleans()):
                enum["symbols"] = [*enum["symbols"], "Z"] if "Z" not in enum["symbols"] else enum["symbols"]
            elif len(enum["symbols"]) > 1:
                enum["symbols"] = enum["symbols"][:-1]
        elif change == "alias" and records:
            fields = draw(st.sampled_from(records))["fields"]
            if fields:
                field = draw(st.sampled_from(fields))
                field["aliases"], field["name"] = [field["name"]], f"a{draw(st.integers(0, 99))}"
    for record in types(schema, "record"):
        record["fields"] = list({field["name"]: field for field in record["fields"]}.values())
    return schema


def values(schema: Any) -> st.SearchStrategy[Any]:
    if isinstance(schema, str):
        return VALUES[schema]
    if isinstance(schema, list):
        return st.one_of([values(branch) for branch in schema])
    match schema["type"]:
        case "record":
            return st.fixed_dictionaries({field["name"]: values(field["type"]) for field in schema["fields"]})
        case "array":
            return st.lists(values(schema["items"]), max_size=2)
        case "map":
            return st.dictionaries(st.text(max_size=2), values(schema["values"]), max_size=2)
        case "enum":
            return st.sampled_from(schema["symbols"])
        case _:
            return st.binary(min_size=schema["size"], max_size=schema["size"])
