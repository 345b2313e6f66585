"""Levels on the command line of `headwater cluster features`."""

from __future__ import annotations

import pytest

from headwater.cli.main import main


@pytest.mark.parametrize("level", ["new", "-1", "40000", "٣", "9" * 5_000])
def test_what_is_no_level_is_refused_in_one_line(level: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cluster", "features", "upgrade", "--feature", f"metadata.version={level}"]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert "is no level: use 0 to 32767" in line
