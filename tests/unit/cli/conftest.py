"""A command line without settings of its own: no file, no HEADWATER_* of the person who runs the tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from headwater.cli.shell.options import settings


@pytest.fixture(autouse=True)
def clean_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in os.environ:
        if name.startswith("HEADWATER_"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    settings.cache_clear()
