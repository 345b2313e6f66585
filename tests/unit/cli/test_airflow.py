"""`headwater airflow` writes everything that Airflow needs, once."""

from __future__ import annotations

from pathlib import Path

import pytest

from headwater.cli.main import main

ROOT = Path(__file__).parents[3]


def test_dags_plugins_and_settings_are_written(tmp_path: Path) -> None:
    assert main(["airflow", str(tmp_path / "af")]) == 0
    written = {str(path.relative_to(tmp_path / "af")) for path in (tmp_path / "af").rglob("*") if path.is_file()}
    dags = {f"dags/{path.name}" for path in (ROOT / "airflow_dags").iterdir() if path.is_file()}
    assert {"dags/headwater_load_dags.py", "dags/requirements.lock", "dags/.airflowignore"} <= dags
    assert written == dags | {"plugins/headwater_hints.py", "airflow.yaml"}
    for name in sorted(dags):
        assert (tmp_path / "af" / name).read_bytes() == (ROOT / "airflow_dags" / Path(name).name).read_bytes()


def test_nothing_is_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "airflow.yaml").write_text("loads: []\n")
    assert main(["airflow", str(tmp_path)]) == 2
    assert capsys.readouterr().err == (f"headwater: airflow: {tmp_path}/airflow.yaml exists; name another folder\n")
    assert (tmp_path / "airflow.yaml").read_text() == "loads: []\n"
    assert list(tmp_path.iterdir()) == [tmp_path / "airflow.yaml"]
