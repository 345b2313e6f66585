"""What a cluster's machines are given: our code, packed once, and the settings by which it is found there."""

from __future__ import annotations

import os
import sys
import tarfile
from pathlib import Path

import pytest

from headwater.pipelines.spark import shipping
from headwater.pipelines.spark.session import LOOPBACK_CONF, cluster_environment, settings
from headwater.pipelines.spark.shipping import FOLDER, for_cluster, is_cluster, shipped_code


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder of the test's own, and two small packages instead of ours."""
    for package in ("one", "two"):
        (tmp_path / "code" / package / "inner").mkdir(parents=True)
        (tmp_path / "code" / package / "__init__.py").write_text("")
        (tmp_path / "code" / package / "inner" / "module.py").write_text(f"NAME = '{package}'\n")
        (tmp_path / "code" / package / "notes.txt").write_text("not code\n")
        (tmp_path / "code" / package / "inner" / "__pycache__").mkdir()
        for name in ("module.f-1.py311.nbi", "module.f-1.py311.1.nbc", "module.cpython-311.pyc", "gone.f-1.py311.nbi"):
            (tmp_path / "code" / package / "inner" / "__pycache__" / name).write_bytes(b"")
    monkeypatch.syspath_prepend(str(tmp_path / "code"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(shipping, "PACKAGES", ("one", "two"))
    monkeypatch.setattr(shipping, "_WARM", "pass")
    return tmp_path


def test_the_archive_holds_sources_and_compiled_kernels_of_the_packages_and_nothing_else(cache: Path) -> None:
    with tarfile.open(shipped_code().archive) as archive:
        files = {os.path.normpath(member.name) for member in archive if member.isfile()}
    kernels = {f"inner/__pycache__/module.f-1.py311.{end}" for end in ("nbi", "1.nbc")}
    assert files == {f"{p}/{name}" for p in ("one", "two") for name in ("__init__.py", "inner/module.py", *kernels)}


def test_code_is_packed_once_and_anew_when_it_has_changed(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = shipped_code()
    with monkeypatch.context() as patched:
        patched.setattr(shipping, "_make", None)
        assert shipped_code() == first
    (cache / "code" / "one" / "inner" / "module.py").write_text("NAME = 'other'\n")
    second = shipped_code()
    assert second != first
    assert Path(second.folder, "one", "inner", "module.py").read_text() == "NAME = 'other'\n"
    assert sorted(path.name for path in (cache / "cache" / "headwater" / "code").iterdir()) == sorted(
        {Path(first.archive).parent.name, Path(second.archive).parent.name}
    )


def test_a_cache_folder_that_cannot_be_made_is_replaced_by_a_temporary_one(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (cache / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache / "file"))
    monkeypatch.setattr("tempfile.tempdir", str(cache))
    assert shipped_code().archive.startswith(str(cache / "headwater-code-"))


def test_executors_get_the_code_before_what_the_user_gives_them() -> None:
    given = {"spark.executorEnv.PYTHONPATH": "own", "spark.executor.extraJavaOptions": "-Xss4m"}
    assert for_cluster(given, "/a.tar.gz") == {
        "spark.archives": f"file:///a.tar.gz#{FOLDER}",
        "spark.executorEnv.PYTHONPATH": f"{FOLDER}:own",
        "spark.executorEnv.PYTHONSAFEPATH": "1",
        "spark.executor.extraJavaOptions": "-Xss4m -Duser.timezone=UTC",
    }


def test_only_a_local_driver_is_bound_to_the_loopback_address() -> None:
    assert LOOPBACK_CONF.items() <= settings().items()
    assert LOOPBACK_CONF.items() <= settings({"spark.master": "local[2]"}).items()
    assert not LOOPBACK_CONF.keys() & settings({"spark.master": "spark://m:7077"}).keys()
    assert is_cluster(settings({"spark.master": "yarn"})["spark.master"])


def test_workers_of_a_cluster_run_the_interpreter_that_the_user_names() -> None:
    ours = cluster_environment({}, {}, "/code")
    assert ours["PYSPARK_PYTHON"] == ours["PYSPARK_DRIVER_PYTHON"] == sys.executable
    assert "PYTHONPATH" not in ours
    named = cluster_environment({}, {"PYSPARK_PYTHON": "/env/python", "PYTHONPATH": "/own"}, "/code")
    assert named["PYSPARK_PYTHON"] == named["PYSPARK_DRIVER_PYTHON"] == "/env/python"
    assert named["PYTHONPATH"] == "/code:/own", "the planner, on the driver's machine, finds our code"
