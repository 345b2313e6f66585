"""Where the jars for a Java process of Hadoop's client are found."""

import importlib.util
from pathlib import Path

import pytest

from headwater.pipelines.file_systems import hadoop_jvm
from headwater.pipelines.file_systems.file_system import FileSystemError


def test_in_a_task_the_jars_are_those_of_spark_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There, `pyspark` is a zip file, which has no jars beside it."""
    spec = importlib.util.spec_from_file_location("pyspark", tmp_path / "pyspark.zip" / "pyspark" / "__init__.py")
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: spec)
    monkeypatch.delenv("SPARK_HOME", raising=False)
    with pytest.raises(FileSystemError, match="set SPARK_HOME"):
        hadoop_jvm._jars()
    jar = tmp_path / "home [1]" / "jars" / "py4j-1.jar"
    jar.parent.mkdir(parents=True)
    jar.touch()
    monkeypatch.setenv("SPARK_HOME", str(jar.parents[1]))
    assert hadoop_jvm._jars() == (str(jar.parent), str(jar))


def test_elsewhere_the_jars_are_those_of_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = tmp_path / "jars" / "py4j-1.jar"
    other.parent.mkdir()
    other.touch()
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    jars, py4j_jar = hadoop_jvm._jars()
    assert Path(py4j_jar).parent == Path(jars)
    assert any(path.name.startswith("hadoop-client") for path in Path(jars).iterdir())
