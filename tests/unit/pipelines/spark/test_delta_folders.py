"""Whether a folder is a Delta table itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headwater.pipelines.spark.delta_folders import is_delta_table


@pytest.mark.parametrize(
    ("log", "is_table"),
    [
        (None, False),
        ([], False),
        ([".00000000000000000000.json.1f.tmp", "00000000000000000000.crc"], False),
        (["00000000000000000000.crc", "00000000000000000000.json"], True),
        (["00000000000000000010.checkpoint.parquet"], True),
        (["00000000000000000011.crc", "_last_checkpoint"], True),
    ],
)
def test_a_log_without_a_commit_is_no_table(tmp_path: Path, log: list[str] | None, is_table: bool) -> None:
    for name in log or []:
        (tmp_path / "_delta_log").mkdir(exist_ok=True)
        (tmp_path / "_delta_log" / name).touch()
    spark: Any = None
    assert is_delta_table(spark, f"file:{tmp_path}") is is_table
