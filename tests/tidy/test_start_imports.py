"""What the processes of a node import before they serve, read from the sources: start-up time and memory hang on it."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import headwater

#: The source root.
ROOT = Path(headwater.__file__).parents[1]
#: Slow to import, or imports much: what needs one of them imports it in a function.
SLOW_OF_THE_STANDARD_LIBRARY = {
    "email",
    "http.client",
    "http.server",
    "importlib.metadata",
    "multiprocessing",
    "sqlite3",
    "unittest",
    "urllib.request",
    "xml",
    "zipfile",
}


def source(module: str) -> Path | None:
    """The file of a module of ours."""
    if module.partition(".")[0] != "headwater":
        return None
    stem = ROOT.joinpath(*module.split("."))
    return next((path for path in (stem / "__init__.py", stem.with_suffix(".py")) if path.is_file()), None)


def at_import(statements: Sequence[ast.stmt]) -> Iterator[ast.Import | ast.ImportFrom]:
    """The import statements that run when a module is imported."""
    for statement in statements:
        if isinstance(statement, (ast.Import, ast.ImportFrom)):
            yield statement
        elif isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        elif isinstance(statement, ast.If) and "TYPE_CHECKING" in ast.unparse(statement.test):
            yield from at_import(statement.orelse)
        else:
            for part in (statement, *getattr(statement, "handlers", [])):
                for name in ("body", "orelse", "finalbody"):
                    yield from at_import(getattr(part, name, []))


def names(statement: ast.Import | ast.ImportFrom) -> Iterator[str]:
    """The modules that an import statement asks for."""
    if isinstance(statement, ast.Import):
        yield from (alias.name for alias in statement.names)
    else:
        assert statement.module is not None, "imports are absolute"
        yield statement.module
        for alias in statement.names:
            if source(f"{statement.module}.{alias.name}") is not None:
                yield f"{statement.module}.{alias.name}"


def imported(*starts: str) -> dict[str, str]:
    """All modules that are imported with `starts`, each with the way that leads to it; foreign ones are not entered."""
    ways = {start: start for start in starts}
    todo = list(starts)
    while todo:
        module = todo.pop()
        path = source(module)
        if path is None:
            continue
        parents = [module.rpartition(".")[0]] if "." in module else []
        asked = [name for statement in at_import(ast.parse(path.read_bytes()).body) for name in names(statement)]
        for name in (*parents, *asked):
            if name not in ways:
                ways[name] = f"{ways[module]} -> {name}"
                todo.append(name)
    return ways


def unwanted(ways: dict[str, str], *, packages: set[str]) -> list[str]:
    """The ways to what is neither ours, nor quick and of the standard library, nor one of `packages`."""
    return [
        way
        for module, way in ways.items()
        if module in SLOW_OF_THE_STANDARD_LIBRARY
        or module.partition(".")[0] not in {*sys.stdlib_module_names, "headwater", *packages}
    ]


def test_a_broker_starts_without_what_only_some_brokers_need() -> None:
    ways = imported(
        "headwater.__main__",
        "headwater.cli.verbs.broker",
        "headwater.logtier.broker",
        "headwater.logtier.runtime.event_loop",
    )
    assert "headwater.logtier.handlers.records.produce" in ways
    assert not unwanted(ways, packages={"click", "cramjam", "crc32c", "kio", "orjson"})
    later = ("metrics.endpoint", "log.cleaner_worker", "records.columns", "broker_cluster", "cluster.group_ends")
    for module in (*(f"headwater.logtier.{name}" for name in later), "headwater.api"):
        assert module not in ways, ways[module]


def test_the_package_itself_imports_nothing() -> None:
    ways = imported("headwater")
    assert unwanted(ways, packages=set()) == []
    assert not any(module.startswith("headwater.") for module in ways), ways


def test_the_rest_api_starts_without_the_broker_and_without_spark() -> None:
    ways = imported("headwater.__main__", "headwater.cli.verbs.api", "headwater.api.app", "headwater.api.topic_admin")
    assert "headwater.api.routers.topics" in ways
    assert not unwanted(ways, packages={"click", "confluent_kafka", "fastapi", "orjson", "pydantic", "starlette"})
    for module in ("headwater.logtier.broker", "headwater.logtier.protocol.messages", "headwater.logtier.client"):
        assert module not in ways, ways[module]
    # The registry shares the languages of schemas with the formats of pipelines, and nothing else.
    ours = {module for module in ways if module.startswith("headwater.pipelines.")}
    assert ours == {module for module in ours if module.startswith("headwater.pipelines.schemas")} != set()


def test_a_supervisor_starts_its_children_before_anything_of_theirs_is_imported() -> None:
    ways = imported("headwater.__main__", "headwater.cli.verbs.up")
    assert "headwater.supervisor" in ways
    assert not unwanted(ways, packages={"click"})
    for module in ("headwater.logtier", "headwater.api", "headwater.pipelines", "asyncio"):
        assert module not in ways, ways[module]
