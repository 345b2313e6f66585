"""The tree as the tidy tests see it: every file that is source, nothing that is built or installed."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# What .gitignore leaves out; kept in step with it by a test.
NOT_SOURCE = frozenset(
    {
        ".git",
        ".venv",
        "__pycache__",
        "build",
        "dist",
        ".mypy_cache",
        ".pytest_cache",
        ".ruff_cache",
        ".import_linter_cache",
        ".hypothesis",
        "spark-warehouse",
        "metastore_db",
        "headwater-data",
    }
)


@pytest.fixture(scope="session")
def root() -> Path:
    """The folder of pyproject.toml."""
    return ROOT


@pytest.fixture(scope="session")
def sources() -> Sequence[Path]:
    """Every source file, relative to the root."""
    found = []
    for folder, folders, files in os.walk(ROOT):
        folders[:] = [
            name
            for name in folders
            # A virtual environment may carry any name.
            if name not in NOT_SOURCE
            and not name.endswith(".egg-info")
            and not Path(folder, name, "pyvenv.cfg").exists()
        ]
        # In a worktree of git, .git is a file.
        found += [Path(folder, name).relative_to(ROOT) for name in files if name not in NOT_SOURCE]
    assert len(found) > 50, "the walk lost the tree"
    return sorted(found)


@pytest.fixture(scope="session")
def texts(sources: Sequence[Path]) -> dict[Path, str]:
    """The sources that are text, with their contents."""
    result = {}
    for path in sources:
        data = (ROOT / path).read_bytes()
        if b"\0" not in data[:8192]:
            result[path] = data.decode()
    return result


@pytest.fixture(scope="session")
def prose(texts: dict[Path, str]) -> dict[Path, str]:
    """The Markdown files, with the lines of their code blocks left empty: numbers of lines stay."""
    result = {}
    for path, text in texts.items():
        if path.suffix == ".md":
            is_code = False
            lines = []
            for line in text.splitlines():
                is_fence = line.lstrip().startswith("```")
                lines.append("" if is_code or is_fence else line)
                is_code ^= is_fence
            result[path] = "\n".join(lines)
    return result
