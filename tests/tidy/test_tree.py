"""The shape of the tree: folders, names, sizes, what must not stand in a file."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

LINES_MAX = 600
LEFTOVERS = {"util", "utils", "utility", "utilities", "helper", "helpers", "common", "misc", "stuff", "shared", "tools"}
# Written so that they do not find themselves.
MACHINE_PATH = re.compile(r"(?<![\w.$}/>-])/(?:wor[k]|roo[t]|hom[e]|User[s]|tm[p])/\w")
REGISTRY = re.compile(
    r"https?://[^\s\"'<>)]*(?:/simpl[e]|/maven[2]|\.wh[l]|\.tar\.g[z]|\.tg[z])|pypi\.or[g]|files\.pythonhoste[d]|repo1?\.mave[n]"
)
UNFINISHED = re.compile(r"\b(?:TOD[O]|FIXM[E]|XX[X]|HAC[K])\b")


def offenders(texts: dict[Path, str], pattern: re.Pattern[str]) -> list[str]:
    """`file:line: text` of every line that matches."""
    return [
        f"{path}:{number}: {line.strip()[:100]}"
        for path, text in texts.items()
        for number, line in enumerate(text.splitlines(), 1)
        if pattern.search(line)
    ]


def test_platform_is_no_package_so_that_the_standard_module_is_found(sources: Sequence[Path]) -> None:
    assert Path("platform/__init__.py") not in sources


def test_tests_are_no_packages(sources: Sequence[Path]) -> None:
    assert [p for p in sources if p.parts[0] == "tests" and p.name == "__init__.py"] == []


def test_no_module_is_a_drawer_for_odds_and_ends(sources: Sequence[Path]) -> None:
    names = [(p, part.removesuffix(".py").strip("_")) for p in sources for part in p.parts]
    assert [str(p) for p, name in names if name in LEFTOVERS] == []


def test_no_module_is_too_long_to_have_one_purpose(texts: dict[Path, str]) -> None:
    sizes = {str(p): text.count("\n") for p, text in texts.items() if p.suffix == ".py"}
    assert {p: n for p, n in sizes.items() if n > LINES_MAX} == {}


def test_a_text_below_a_name_of_a_module_stands_right_below_it(texts: dict[Path, str]) -> None:
    """What stands in between took the name's description from it."""
    astray = [
        f"{path}:{text_node.lineno}"
        for path, text in texts.items()
        if path.suffix == ".py"
        for before, text_node in itertools.pairwise(ast.parse(text).body)
        if isinstance(text_node, ast.Expr)
        and isinstance(text_node.value, ast.Constant)
        and isinstance(text_node.value.value, str)
        and not isinstance(before, ast.Assign | ast.AnnAssign)
    ]
    assert astray == []


def test_nothing_is_left_to_be_done_in_a_comment(texts: dict[Path, str]) -> None:
    assert offenders({p: t for p, t in texts.items() if p.name != "LICENSE"}, UNFINISHED) == []


def test_no_file_knows_the_machine_it_was_written_on(texts: dict[Path, str]) -> None:
    assert offenders(texts, MACHINE_PATH) == []


def test_no_file_names_the_host_of_a_package_registry(texts: dict[Path, str]) -> None:
    assert offenders(texts, REGISTRY) == []


@pytest.mark.parametrize("lock", ["requirements.lock", "airflow_dags/requirements.lock"])
def test_the_locks_pin_every_package_by_hash(texts: dict[Path, str], lock: str) -> None:
    entries = re.split(r"\n(?=[a-z0-9])", texts[Path(lock)])[1:]
    assert len(entries) > 50
    assert [e.splitlines()[0] for e in entries if "==" not in e or "--hash=sha256:" not in e] == []


def test_every_text_ends_with_one_newline_and_has_no_tabs_or_trailing_spaces(texts: dict[Path, str]) -> None:
    kinds = {".py", ".md", ".toml", ".yaml", ".yml", ".sh", ".json", ".properties"}
    for path, text in texts.items():
        if path.suffix in kinds and text:
            assert text.endswith("\n") and not text.endswith("\n\n"), f"{path}: its end"
            assert not re.search(r"[ \t]+$", text, re.MULTILINE), f"{path}: spaces at the end of a line"
            assert path.suffix == ".sh" or "\t" not in text, f"{path}: a tab"


def test_what_the_walk_leaves_out_is_ignored_by_git(root: Path) -> None:
    ignored = {line.strip("/") for line in (root / ".gitignore").read_text().splitlines()}
    left_out = {".venv", "__pycache__", "build", "dist", ".mypy_cache", ".pytest_cache", ".ruff_cache", ".hypothesis"}
    assert left_out <= ignored
