"""Whether a folder of a merged table is a Delta table itself."""

from __future__ import annotations

from typing import Any

import pytest

from headwater.pipelines.sinks.delta import table_folder


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
def test_a_log_without_a_commit_is_no_table(
    monkeypatch: pytest.MonkeyPatch, log: list[str] | None, is_table: bool
) -> None:
    class Files:
        def __init__(self, _spark: Any, _path: str) -> None:
            pass

        def exists(self, path: str) -> bool:
            return log is not None and path.removeprefix("t/_delta_log") in ("", *(f"/{name}" for name in log))

        def names(self, _folder: str) -> list[str]:
            return log or []

    monkeypatch.setattr(table_folder, "HadoopFiles", Files)
    spark: Any = None
    assert table_folder.exists(spark, "t") is is_table
