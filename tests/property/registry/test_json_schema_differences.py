"""What is said to be compatible is true of every document: what the old schema takes, the new one takes too."""

from __future__ import annotations

import copy
import json
from typing import Any

import jsonschema
from hypothesis import assume, given
from hypothesis import strategies as st

from headwater.api.registry.json_schema.schema import JsonSchema

NAMES = ("a", "b", "ab")
DOCUMENTS = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 9)
    | st.sampled_from([0.5, 2.5])
    | st.sampled_from(["", "a", "bb", "abc"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=3),
    max_leaves=6,
)
NUMBER = st.fixed_dictionaries(
    {"type": st.sampled_from(["integer", "number"])},
    optional={
        "minimum": st.integers(0, 4),
        "maximum": st.integers(3, 8),
        "exclusiveMinimum": st.integers(0, 3),
        "multipleOf": st.sampled_from([1, 2, 4]),
    },
)
TEXT = st.fixed_dictionaries(
    {"type": st.just("string")},
    optional={"minLength": st.integers(0, 2), "maxLength": st.integers(1, 4), "pattern": st.sampled_from(["^a", "b"])},
)
LEAF = st.one_of(
    NUMBER,
    TEXT,
    st.just({}),
    st.booleans(),
    st.just({"type": ["string", "null"]}),
    st.fixed_dictionaries({"enum": st.lists(st.sampled_from(["a", "bb", 1, None]), min_size=1, unique=True)}),
)


def larger(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    names = st.sampled_from(NAMES)
    return st.one_of(
        st.fixed_dictionaries(
            {"type": st.just("object")},
            optional={
                "properties": st.dictionaries(names, inner, max_size=3),
                "required": st.lists(names, max_size=2, unique=True),
                "additionalProperties": inner,
                "patternProperties": st.dictionaries(st.sampled_from(["^a", "b$"]), inner, max_size=2),
                "propertyNames": st.sampled_from([{}, {"maxLength": 1}]),
                "minProperties": st.integers(0, 1),
                "maxProperties": st.integers(1, 3),
                "dependencies": st.dictionaries(names, st.lists(names, max_size=1), max_size=1),
            },
        ),
        st.fixed_dictionaries(
            {"type": st.just("array")},
            optional={
                "items": inner,
                "minItems": st.integers(0, 2),
                "maxItems": st.integers(1, 3),
                "uniqueItems": st.booleans(),
                "contains": inner,
            },
        ),
        st.fixed_dictionaries(
            {"type": st.just("array"), "items": st.lists(inner, min_size=1, max_size=2)},
            optional={"additionalItems": inner},
        ),
        st.fixed_dictionaries({"anyOf": st.lists(inner, min_size=1, max_size=2)}),
        st.fixed_dictionaries({"allOf": st.lists(inner, min_size=1, max_size=2)}),
        st.fixed_dictionaries({"not": inner}),
    )


SCHEMAS = st.recursive(LEAF, larger, max_leaves=5)


def places(schema: Any) -> list[tuple[Any, Any]]:
    found = []
    if isinstance(schema, dict):
        for key, value in schema.items():
            if key in ("additionalProperties", "items", "contains", "not", "additionalItems") and not isinstance(
                value, list
            ):
                found += [(schema, key), *places(value)]
            elif key in ("properties", "patternProperties"):
                for name, inner in value.items():
                    found += [(value, name), *places(inner)]
            elif key in ("anyOf", "allOf") or (key == "items" and isinstance(value, list)):
                for index, inner in enumerate(value):
                    found += [(value, index), *places(inner)]
    return found


@st.composite
def changed(draw: st.DrawFn, schema: Any) -> Any:
    """The schema after one change: something else at a place, or a keyword more, less or other."""
    holder = [copy.deepcopy(schema)]
    where, key = draw(st.sampled_from([(holder, 0), *places(holder[0])]))
    if isinstance(where[key], dict) and where[key] and draw(st.booleans()):
        target = where[key]
        keyword = draw(st.sampled_from(sorted(target)))
        other = draw(SCHEMAS)
        if isinstance(other, dict) and keyword in other and keyword != "enum":
            target[keyword] = other[keyword]
        elif keyword not in ("type", "anyOf", "allOf", "not", "enum"):
            del target[keyword]
        elif isinstance(other, dict) and other.get("type") == target.get("type"):
            target.update(other)
    else:
        where[key] = draw(SCHEMAS)
    return holder[0]


def parse(schema: Any) -> JsonSchema:
    return JsonSchema.parse(json.dumps(schema), ())


def takes(schema: Any, document: Any) -> bool:
    return bool(jsonschema.Draft7Validator(schema).is_valid(document))


@given(st.data())
def test_what_is_compatible_takes_what_was_taken(data: st.DataObject) -> None:
    original = data.draw(SCHEMAS)
    update = data.draw(changed(original))
    if parse(update).problems_reading(parse(original)):
        return
    for document in data.draw(st.lists(DOCUMENTS, min_size=5, max_size=10)):
        if takes(original, document):
            assert takes(update, document), document


@given(SCHEMAS)
def test_no_schema_is_incompatible_with_itself_and_its_text_is_the_same_schema(schema: Any) -> None:
    parsed = parse(schema)
    assert parsed.problems_reading(parse(schema)) == []
    assert json.loads(parsed.canonical) == schema
    assert JsonSchema.parse(parsed.normalized(), ()).normalized() == parsed.normalized()


@given(SCHEMAS, SCHEMAS)
def test_every_problem_says_where_it_is(one: Any, other: Any) -> None:
    assume(one != other)
    for problem in parse(other).problems_reading(parse(one)):
        assert problem.kind
        assert problem.path.startswith("#/")
