"""Errors are made where they are raised: one that is kept and raised again and again keeps every traceback it had."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path

PRODUCT = {"logtier", "pipelines", "api", "platform"}
#: What an exception's class is called here; a tidy test of names would be another one.
SUFFIXES = ("Error", "Exception")


def kept_errors(module: ast.Module) -> set[str]:
    """Names at the top of a module or a class that hold an instance of an error."""
    bodies = [module.body, *(node.body for node in ast.walk(module) if isinstance(node, ast.ClassDef))]
    return {name for body in bodies for statement in body for name in _kept_by(statement)}


def _kept_by(statement: ast.stmt) -> Iterator[str]:
    if isinstance(statement, ast.Assign):
        targets, value = statement.targets, statement.value
    elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
        targets, value = [statement.target], statement.value
    else:
        return
    if isinstance(value, ast.Call) and _last_name(value.func).endswith(SUFFIXES):
        yield from (target.id for target in targets if isinstance(target, ast.Name))


def raised(module: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and last name of whatever is raised, or given to a future as its failure, without being made there."""
    for node in ast.walk(module):
        if isinstance(node, ast.Raise) and node.exc is not None:
            value: ast.expr = node.exc
        elif isinstance(node, ast.Call) and _last_name(node.func) in {"set_exception", "throw"} and node.args:
            value = node.args[0]
        else:
            continue
        if name := _last_name(value):
            yield node.lineno, name


def _last_name(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def is_constant(name: str) -> bool:
    return name == name.upper() and name.strip("_") != ""


def test_no_error_that_is_kept_is_raised(sources: Sequence[Path], root: Path) -> None:
    modules = {
        path: ast.parse((root / path).read_bytes())
        for path in sources
        if path.suffix == ".py" and path.parts[0] in PRODUCT
    }
    kept = {name for module in modules.values() for name in kept_errors(module)}
    found = [
        f"{path}:{line}: raise {name}"
        for path, module in modules.items()
        for line, name in raised(module)
        if name in kept or is_constant(name)
    ]
    assert found == []


def test_what_is_forbidden_is_found() -> None:
    module = ast.parse(
        "DENIED = KafkaError(1)\n"
        "class A:\n    late: Final = errors.LateError()\n"
        "def f(self):\n    raise DENIED\n"
        "def g(self):\n    raise self.late from None\n"
        "def h(self):\n    future.set_exception(x.DENIED)\n"
        "def i(self):\n    raise KafkaError(1)\n"
    )
    assert kept_errors(module) == {"DENIED", "late"}
    assert list(raised(module)) == [(5, "DENIED"), (7, "late"), (9, "DENIED")]
