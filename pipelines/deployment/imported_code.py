"""Hashes of a user's Python file and of the user's own modules that it imports. No code is run.

Python's modules and installed packages are excluded: they change with the environment, not with the pipeline.
"""

from __future__ import annotations

import ast
import hashlib
import os
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from importlib.machinery import PathFinder
from typing import Final

__all__ = ["code_hash", "hash_with_imports"]

MODULES_MAX: Final = 500  # imports of one file: more is a library on the path, which is no part of the pipeline
_HASH_CHARS: Final = 16


def code_hash(code: bytes) -> str:
    """A hash of Python code, independent of layout and comments.

    >>> code_hash(b"def f(x):\\n    return x  # same") == code_hash(b"def f( x ):\\n\\n  return x")
    True
    """
    return hashlib.sha256(_meaning(code)).hexdigest()[:_HASH_CHARS]


def hash_with_imports(path: str) -> tuple[str, str]:
    """The hash of a file, and the hash of the modules that it imports, transitively ('' without any). Raises OSError.

    Modules are searched on Python's path and beside the file, which user code often adds to the path.
    """
    with open(path, "rb") as file:
        code = file.read()
    found: dict[str, bytes] = {}
    waiting = list(_imports(code, ""))
    places = [*sys.path, os.path.dirname(os.path.abspath(path))]
    while waiting and len(found) < MODULES_MAX:
        name = waiting.pop()
        if name in found:
            continue
        module = _own_file(name, places)
        if module is None:
            continue
        try:
            with open(module, "rb") as file:
                found[name] = file.read()
        except OSError:
            continue
        package = name if os.path.basename(module) == "__init__.py" else name.rpartition(".")[0]
        waiting += _imports(found[name], package)
    total = hashlib.sha256()
    for name in sorted(found):
        total.update(name.encode() + b"\0" + hashlib.sha256(_meaning(found[name])).digest())
    return code_hash(code), total.hexdigest()[:_HASH_CHARS] if found else ""


def _meaning(code: bytes) -> bytes:
    try:
        return ast.dump(ast.parse(code)).encode()
    except (SyntaxError, ValueError, RecursionError):
        return code


def _imports(code: bytes, package: str) -> Iterator[str]:
    """Every module that may be imported, including its packages; for `from a import b` also `a.b`."""
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*parents, *([node.module] if node.module else [])])
            names = [base, *(f"{base}.{alias.name}" for alias in node.names)] if base else []
        else:
            continue
        for name in names:
            parts = name.split(".")
            yield from (".".join(parts[: count + 1]) for count in range(len(parts)))


def _own_file(name: str, places: Sequence[str]) -> str | None:
    """The source file of one of the user's own modules."""
    if name.partition(".")[0] in sys.stdlib_module_names:
        return None
    where = list(places)
    parts = name.split(".")
    origin: str | None = None
    for position in range(len(parts)):
        try:
            spec = PathFinder.find_spec(".".join(parts[: position + 1]), where)
        except (ImportError, ValueError, AttributeError):
            return None
        if spec is None:
            return None
        origin = spec.origin
        where = list(spec.submodule_search_locations or ())
    if origin is None or not origin.endswith(".py") or _is_installed(origin):
        return None
    return origin


def _is_installed(origin: str) -> bool:
    folders = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    folders.add(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))  # Headwater itself, in any location
    full = os.path.realpath(origin)
    inside = any(full.startswith(os.path.realpath(folder) + os.sep) for folder in folders if folder)
    return inside or f"{os.sep}site-packages{os.sep}" in full
