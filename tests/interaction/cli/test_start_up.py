"""What the command line imports: `--help` must be quick, and a verb must not pay for the others."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

pytestmark = pytest.mark.slow

HEAVY = ("pyspark", "numba", "pandas", "pyarrow", "pydantic", "fastapi", "typer", "rich", "confluent_kafka", "numpy")


def imported(alone: Any, *arguments: str) -> set[str]:
    """Top-level modules that a command has imported when it ends."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "headwater", *arguments],
        capture_output=True, text=True, cwd=alone.folder, env=alone.environment, timeout=60, check=True,
    )  # fmt: skip
    lines = [line for line in done.stderr.splitlines() if line.startswith("import time:")]
    return {line.rpartition("|")[2].strip().partition(".")[0] for line in lines}


@pytest.mark.parametrize("arguments", [("--help",), ("version",), ("up", "--help"), ("topic", "--help")])
def test_help_imports_nothing_heavy(alone: Any, arguments: tuple[str, ...]) -> None:
    assert imported(alone, *arguments).isdisjoint(HEAVY)


def test_the_help_of_the_root_imports_no_verb(alone: Any) -> None:
    assert imported(alone, "--help").isdisjoint({"api", "pipelines", "logtier", "yaml", "asyncio"})
