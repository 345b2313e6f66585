"""Words that make a reader stumble are counted, in the documentation and among public names. A count may only fall.

The tables hold today's counts as ceilings: a test fails above its ceiling, and below it until the ceiling is lowered.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

# Decisions and old figures are records of their time: they are not rewritten.
RECORDS = (Path("docs/adr"), Path("docs/benchmark_history.md"))
NEWLINE = "\n"
CODE = ("platform", "logtier", "pipelines", "api")

# Name: (pattern, ceiling). The comment above each suggests replacements.
PHRASES: Mapping[str, tuple[str, int]] = {
    # is reported, receives, is listed
    "told, tells": (r"\b(?:told|tells?)\b", 1),
    # is listed, is documented, is stored, is paused
    "stands": (r"\b(?:stands?|stood)\b", 0),
    # counts as
    "taken for": (r"\btaken for\b", 0),
    # a client that, the member that
    "whoever": (r"\bwho(?:m)?ever\b", 0),
    # the thing by its name
    "what is not": (r"\bwhat (?:is|are|was|were|has|does) (?:not|no)\b", 0),
    # another or a missing key
    "more or less": (r"\bmore or less\b", 0),
    # transient
    "may pass": (r"\bmay pass\b", 0),
    # is reported, is logged
    "is said": (r"\b(?:is|are|was|were) said\b", 0),
    # again, recreated, restarted
    "anew": (r"\banew\b", 0),
    # the available data, the whole backlog
    "what there is": (r"\b(?:what|all) there (?:is|are)\b", 0),
    # continues, resumes
    "goes on": (r"\bgo(?:es)? on\b", 0),
    # the broker is queried, the user confirms
    "is asked": (r"\b(?:is|are|was|were) asked\b", 0),
    # no longer
    "no more": (r"\b(?:no|any) more\b", 0),
    # differs
    "otherwise than": (r"\botherwise than\b", 0),
}

# Suggested replacements state the value: analysis, message, reported, column, remaining, pending.
NAMES: Mapping[str, int] = {
    "found": 0,
    "kept": 0,
    "more": 0,
    "one": 0,
    "said": 0,
    "told": 0,
}


def is_documentation(path: Path) -> bool:
    return path != Path("CHANGELOG.md") and not any(path.is_relative_to(record) for record in RECORDS)


def verdict(count: int, ceiling: int, places: list[str]) -> str:
    """'' if the count is at its ceiling, else what to do.

    >>> verdict(2, 2, ["a", "b"]), verdict(1, 2, ["a"])
    ('', 'lower the ceiling to 1')
    """
    if count > ceiling:
        return f"{count}, more than {ceiling}: " + "; ".join(places)
    return f"lower the ceiling to {count}" if count < ceiling else ""


@pytest.mark.parametrize("name", PHRASES)
def test_a_worn_phrase_gets_rarer(name: str, prose: dict[Path, str]) -> None:
    pattern, ceiling = PHRASES[name]
    # A phrase may be broken over two lines.
    expression = re.compile(pattern.replace(" ", r"\s+"), re.IGNORECASE)
    places = [
        f"{path}:{text.count(NEWLINE, 0, match.start()) + 1}"
        for path, text in prose.items()
        if is_documentation(path)
        for match in expression.finditer(text)
    ]
    assert verdict(len(places), ceiling, places) == ""


def public_names(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Names of public classes, their attributes, and public functions and their parameters, with their lines."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            yield from names_of_class(node)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from names_of_function(node)


def names_of_class(node: ast.ClassDef) -> Iterator[tuple[str, int]]:
    if node.name.startswith("_"):
        return
    yield node.name, node.lineno
    attributes: dict[str, int] = {}
    for part in node.body:
        if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from names_of_function(part)
            for each in ast.walk(part):
                if isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store) and is_self(each.value):
                    attributes.setdefault(each.attr, each.lineno)
        elif isinstance(part, ast.AnnAssign | ast.Assign):
            for target in [part.target] if isinstance(part, ast.AnnAssign) else part.targets:
                if isinstance(target, ast.Name):
                    attributes.setdefault(target.id, target.lineno)
    yield from ((name, line) for name, line in attributes.items() if not name.startswith("_"))


def is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "self"


def names_of_function(node: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[tuple[str, int]]:
    if not node.name.startswith("_") or node.name == "__init__":
        if node.name != "__init__":
            yield node.name, node.lineno
        for argument in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs):
            if argument.arg != "self":
                yield argument.arg, argument.lineno


@pytest.fixture(scope="module")
def named(texts: dict[Path, str]) -> dict[str, list[str]]:
    """The places of the public names that say too little, by name."""
    places: dict[str, list[str]] = {name: [] for name in NAMES}
    for path, text in texts.items():
        if path.suffix == ".py" and path.parts[0] in CODE:
            for name, line in public_names(ast.parse(text)):
                if name.lower() in places:
                    places[name.lower()].append(f"{path}:{line}")
    return places


@pytest.mark.parametrize("name", NAMES)
def test_a_public_name_that_does_not_say_what_its_value_is_gets_rarer(name: str, named: dict[str, list[str]]) -> None:
    assert verdict(len(named[name]), NAMES[name], named[name]) == ""


def test_the_count_sees_every_kind_of_public_name_and_no_private_one() -> None:
    source = """
class Told:
    kept: int
    more = 1
    def __init__(self, found):
        self.said = found
        self._one = found
    def _private(self, told): ...
def one(found, *, told=1): ...
def _one(found): ...
class _Kept:
    kept: int
"""
    names = [name for name, _ in public_names(ast.parse(source))]
    assert names == ["Told", "found", "kept", "more", "said", "one", "found", "told"]


@pytest.mark.parametrize(
    ("count", "ceiling", "expected"),
    [(3, 2, "3, more than 2: a; b; c"), (2, 2, ""), (1, 2, "lower the ceiling to 1")],
)
def test_a_count_fails_above_its_ceiling_and_below_it(count: int, ceiling: int, expected: str) -> None:
    assert verdict(count, ceiling, ["a", "b", "c"][:count]) == expected
