"""PySpark's private ways to the JVM are taken in two modules, which name the classes of Spark that they depend on."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

PRODUCT = {"logtier", "pipelines", "api", "platform"}
GATES = {Path(f"pipelines/spark/{name}.py") for name in ("jvm", "jvm_delta", "jvm_servers")}
#: Names by which PySpark's classes hold their counterparts in the JVM, and the way to them.
PRIVATE = frozenset(
    {"_gateway", "_jc", "_jdf", "_jmap", "_jreader", "_jsc", "_jseq", "_jsparkSession", "_jsq", "_jvm", "_jwrite"}
)


def accesses(module: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and name of each attribute of PySpark's that leads to the JVM, written out or given to `getattr`."""
    for node in ast.walk(module):
        if isinstance(node, ast.Attribute) and node.attr in PRIVATE:
            yield node.lineno, node.attr
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("getattr", "setattr"):
            for given in node.args[1:2]:
                if isinstance(given, ast.Constant) and given.value in PRIVATE:
                    yield node.lineno, str(given.value)


@pytest.mark.parametrize("line", ["frame._jdf.count()", "getattr(spark, '_jvm')", "SparkContext._gateway = None"])
def test_an_access_is_found(line: str) -> None:
    assert [found for found, _ in accesses(ast.parse(line))] == [1]


def test_these_modules_alone_touch_the_jvm(sources: Sequence[Path], root: Path) -> None:
    modules = [path for path in sources if path.suffix == ".py" and path.parts[0] in PRODUCT]
    assert set(modules) >= GATES
    found = [
        f"{path}:{line}: {name}"
        for path in modules
        if path not in GATES
        for line, name in accesses(ast.parse((root / path).read_bytes()))
    ]
    assert found == []
