"""Converts pydantic's errors to problems of a pipeline's file, with its terms and positions. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import Tag, ValidationError
from pydantic.fields import FieldInfo

from headwater.pipelines.definition.model import Model, fields_of
from headwater.pipelines.definition.pipeline import Pipeline
from headwater.pipelines.definition.secret_text import references_shown
from headwater.pipelines.definition.yaml_source import Document, Loc, field_name
from headwater.pipelines.errors import Problem, nearest

_MISSING = {
    "pipeline": "name the pipeline: `pipeline: NAME`",
    "stages": "a pipeline needs at least one stage",
    "to": "say where the stage's rows go: a topic, a Delta table, files, a database or a function",
    "from": "say what the stage reads: `from: {topic: NAME}`",
    "name": "give it a name",
    "that": "give the condition, an SQL expression",
}
_KIND_HINTS = {
    "sink": "write {topic: NAME, key: COLUMN} or {delta: PATH}",
    "source": "write {topic: NAME}",
    "table": "write {format: csv, path: PATH}",
    "step": "write {sql: TEXT}",
}


@dataclass(frozen=True, slots=True)
class Place:
    """Position of a pydantic error in the file, the field's model, and the value's type."""

    loc: Loc
    model: type[Model] | None
    annotation: Any


def problems_of(error: ValidationError, document: Document) -> list[Problem]:
    """Return every error once, as a problem of the file."""
    problems: list[Problem] = []
    for item in error.errors(include_url=False):
        place = find_place(item["loc"], document)
        kind, context, given = item["type"], item.get("ctx", {}), item.get("input")
        if kind == "too_short" and given:
            continue  # the value is not empty: its parts are invalid, and have their own problems
        last = str(place.loc[-1]) if place.loc else ""
        if kind == "extra_forbidden":
            hint = nearest(last, fields_of(place.model) if place.model else [])
            problems.append(document.problem(place.loc, f"unknown field '{last}'", hint, at_key=True))
        elif kind == "missing":
            at = document.problem(place.loc[:-1], f"'{last}' is missing", _MISSING.get(last, "add it"))
            problems.append(Problem(at.file, at.line, at.column, field_name(place.loc), at.message, at.hint))
        elif kind == "kind":
            problems.append(document.problem(place.loc, *_kind(item["msg"], given, place.annotation)))
        else:
            message, hint = _in_words(kind, item["msg"], context, given)
            problems.append(document.problem(place.loc, references_shown(message), references_shown(hint)))
    return list(dict.fromkeys(problems))


def find_place(loc: tuple[int | str, ...], document: Document) -> Place:
    """Follow pydantic's path through the models: unlike the file, the path names the kind of a union's member."""
    found: Loc = ()
    model: type[Model] | None = None
    annotation: Any = Pipeline
    for part in loc:
        annotation = _bare(annotation)
        kinds = _kinds(annotation)
        if part in kinds:
            annotation = kinds[str(part)]
            continue
        if isinstance(annotation, type) and issubclass(annotation, Model):
            model = annotation
            field = _field(annotation, str(part))
            annotation = None if field is None else field.annotation
        elif get_origin(annotation) is tuple and isinstance(part, int):
            annotation = get_args(annotation)[0]
        elif get_origin(annotation) is dict and part != "[key]":
            annotation = get_args(annotation)[1]
        elif annotation is not None:
            continue  # the name of a member of a union of plain values
        found = (*found, part)
    return Place(document.place(found), model, _bare(annotation))


def _bare(annotation: Any) -> Any:
    """Return the annotation without metadata and None."""
    while True:
        if get_origin(annotation) is Annotated:
            annotation = get_args(annotation)[0]
        elif get_origin(annotation) in (Union, UnionType) and type(None) in get_args(annotation):
            (*others,) = (part for part in get_args(annotation) if part is not type(None))
            if len(others) != 1:
                return annotation
            annotation = others[0]
        else:
            return annotation


def _kinds(annotation: Any) -> dict[str, type[Model]]:
    """Return the members of a tagged union."""
    if get_origin(annotation) not in (Union, UnionType):
        return {}
    tagged = [get_args(part) for part in get_args(annotation) if get_origin(part) is Annotated]
    return {data.tag: member for member, *metadata in tagged for data in metadata if isinstance(data, Tag)}


def _field(model: type[Model], name: str) -> FieldInfo | None:
    for own, info in model.model_fields.items():
        if name in (info.alias, own):
            return info
    return None


def _kind(message: str, given: Any, annotation: Any) -> tuple[str, str]:
    """Return message and hint for a mapping that has none, or several, of the known kinds."""
    kinds = list(_kinds(annotation))
    what = next((name for name in _KIND_HINTS if f" {name} " in f" {message} "), "")
    if not isinstance(given, dict):
        return f"{message}, and is a mapping, not {_shown(given)}", _KIND_HINTS.get(what, "")
    several = [kind for kind in kinds if kind in given]
    if len(several) > 1:
        return f"{message}, and this one names {' and '.join(several)}", "split it into two"
    guesses = [nearest(str(key), kinds) for key in given]
    close = next((guess for guess in guesses if guess.startswith("did you mean")), "")
    return message, close or _KIND_HINTS.get(what, "")


def _in_words(kind: str, message: str, context: Mapping[str, Any], given: Any) -> tuple[str, str]:
    words: dict[str, Callable[[], tuple[str, str]]] = {
        "literal_error": lambda: (
            f"{given!r} is not allowed",
            nearest(
                str(given), [v.strip("' ") for v in re.split(r",| or ", str(context["expected"])) if v.strip("' ")]
            ),
        ),
        "too_short": lambda: ("it is empty", "give at least one"),
        "too_long": lambda: (f"there are {context.get('actual_length')}, and at most {context['max_length']}", ""),
        "string_too_short": lambda: ("it is empty", "give a value, or remove the field"),
        "model_type": lambda: (f"expected a mapping of fields, not {_shown(given)}", ""),
        "dict_type": lambda: (f"expected a mapping, not {_shown(given)}", ""),
        "tuple_type": lambda: (f"expected a list, not {_shown(given)}", "write [ … ] or lines that begin with '-'"),
        "string_type": lambda: (f"expected text, not {_shown(given)}", _text_hint(given)),
    }
    if kind in words:
        return words[kind]()
    text = message.removeprefix("Value error, ")
    return text[:1].lower() + text[1:] + ("" if kind == "value_error" else f", not {_shown(given)}"), ""


def _text_hint(given: Any) -> str:
    """What to do about a value that is not text. `{name}` in place of text is meant as a variable, most likely."""
    if isinstance(given, dict) and len(given) == 1:
        ((name, value),) = given.items()
        return f'for the variable, write "${{{name}}}" in quotes' if value is None else ""
    return "quote it" if isinstance(given, int | float) else ""


def _shown(value: Any) -> str:
    if value is None:
        return "nothing"
    return "a mapping" if isinstance(value, dict) else "a list" if isinstance(value, list) else repr(value)[:60]
