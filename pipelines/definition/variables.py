"""`${name}`: variables and references to secrets in the text values of a file. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from headwater.pipelines.definition.yaml_source import Document, Loc
from headwater.pipelines.errors import PipelineError, Problem, nearest

_VARIABLE = re.compile(r"\$(?:(\$\{)|\{(?:(env|file):([^{}\0]*)|([A-Za-z_][A-Za-z0-9_]*))\})")


def resolved(document: Document, variables: Mapping[str, str], places: Mapping[str, Loc]) -> dict[str, str]:
    """Resolve variables inside the values of other variables.

    `places` contains their positions. Raises PipelineError for unknown names and for cycles.
    """
    done: dict[str, str] = {}
    problems: list[Problem] = []

    def value(name: str, path: tuple[str, ...]) -> str:
        if name in done:
            return done[name]
        loc = places.get(name, ())
        if name in path:
            around = " -> ".join((*path[path.index(name) :], name))
            problems.append(document.problem(loc, f"the variables form a cycle: {around}"))
            return ""

        def one(match: re.Match[str]) -> str:
            if match[1]:
                return match[0]  # still escaped: it is put into a text that is read once more
            if match[2]:
                return match[0]
            if match[4] in variables:
                return value(match[4], (*path, name))
            problems.append(_unknown(document, loc, match[4], variables))
            return ""

        done[name] = _VARIABLE.sub(one, variables[name])
        return done[name]

    for name in variables:
        value(name, ())
    if problems:
        raise PipelineError(problems)
    return done


def substitute(document: Document, variables: Mapping[str, str], *, skip: frozenset[str] = frozenset()) -> set[str]:
    """Replace `${name}` in every text value (`$${` stays a literal `${`), except in the top-level fields in `skip`.

    The keys of a test's `expect_table` are paths of sinks, and are replaced like the sinks' own.

    References to secrets take the form of `secret_text.REFERENCE`, and their places are recorded in
    `document.references`. Returns the names that were used. Raises PipelineError with every unknown name.
    """
    used: set[str] = set()
    problems: list[Problem] = []

    def in_text(text: str, loc: Loc) -> str:
        def one(match: re.Match[str]) -> str:
            if match[1]:
                return "${"
            if match[2]:
                if not match[3].strip():
                    problems.append(document.problem(loc, f"${{{match[2]}:}} names nothing"))
                    return ""
                document.references.setdefault(f"${{{match[2]}:{match[3]}}}", loc)
                return f"\0{match[2]}:{match[3]}\0"
            name = match[4]
            if name not in variables:
                problems.append(_unknown(document, loc, name, variables))
                return ""
            used.add(name)
            return in_text(variables[name], loc)

        return _VARIABLE.sub(one, text)

    def with_paths(tables: dict[Any, Any], loc: Loc) -> dict[Any, Any]:
        found: dict[Any, Any] = {}
        for key, child in tables.items():
            path = in_text(key, (*loc, key)) if isinstance(key, str) else key
            if path in found:
                problems.append(document.problem((*loc, key), f"the table '{path}' is given twice", "remove one"))
            if path != key:
                document.take_marks((*loc, key), (*loc, path))
            found[path] = child
        return found

    def replaced(value: Any, loc: Loc) -> Any:
        if isinstance(value, dict):
            if loc[:1] == ("tests",) and loc[2:] == ("expect_table",):
                value = with_paths(value, loc)
            return {
                key: child if not loc and key in skip else replaced(child, (*loc, key)) for key, child in value.items()
            }
        if isinstance(value, list):
            return [replaced(child, (*loc, index)) for index, child in enumerate(value)]
        return in_text(value, loc) if isinstance(value, str) and "${" in value else value

    document.values = replaced(document.values, ())
    if problems:
        raise PipelineError(problems)
    return used


def _unknown(document: Document, loc: Loc, name: str, variables: Mapping[str, str]) -> Problem:
    hint = nearest(name, sorted(variables)) if variables else ""
    return document.problem(
        loc, f"no value for the variable ${{{name}}}", hint or f"give it with --set {name}=VALUE or under variables"
    )
