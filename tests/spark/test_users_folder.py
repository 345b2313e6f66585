"""Headwater in a user's project: folders there that carry the names of ours are not taken for ours."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.conftest import BrokerProcess

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
NAMES = ("api", "conf", "logtier", "pipelines", "tests")
#: A module of the user's: whoever imports it by mistake fails.
HOSTILE = "raise RuntimeError(f'{__name__} is the user\\'s')\n"
JOB = """
from pyspark.sql import SparkSession

spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
servers = {"kafka.bootstrap.servers": "ADDRESS"}
rows = spark.range(7).selectExpr("CAST(id AS STRING) AS value")
rows.write.format("headwater").mode("append").options(topic="TOPIC", **servers).save()
print("read", spark.read.format("headwater").options(subscribe="TOPIC", **servers).load().count())
"""

PIPELINE = """
pipeline: flow
topics: {a: {value: string}}
stages:
- {name: copied, from: {topic: a}, sql: SELECT * FROM input, to: {topic: b}}
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What pip would put into site-packages, from a wheel that was built from a source distribution."""
    place = tmp_path_factory.mktemp("site")
    tree = place / "tree"
    for name in ("airflow_dags", "api", "conf", "logtier", "pipelines", "platform"):
        shutil.copytree(ROOT / name, tree / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("LICENSE", "README.md", "pyproject.toml"):
        shutil.copy(ROOT / name, tree / name)
    build(tree, "sdist", place)
    [archive] = place.glob("*.tar.gz")
    shutil.unpack_archive(archive, place / "unpacked", filter="data")
    [source] = (place / "unpacked").iterdir()
    build(source, "wheel", place)
    [wheel] = place.glob("*.whl")
    with zipfile.ZipFile(wheel) as files:
        files.extractall(place / "packages")
    return place / "packages"


def build(tree: Path, target: str, place: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(place)],
        cwd=tree, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's folder."""
    folder = tmp_path_factory.mktemp("project")
    for name in NAMES:
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text(HOSTILE)
    return folder


def run(site: Path, project: Path, *arguments: str) -> str:
    """Standard output of Python in the user's folder, with that folder first on its path."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
    # As in an environment that is activated: Spark's workers are the first `python3`.
    environment["PATH"] = os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=project, env=environment | {"PYTHONPATH": str(site)}, capture_output=True, text=True, check=False,
        stdin=subprocess.DEVNULL, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_command_runs_where_folders_have_our_names(
    site: Path, project: Path, headwater_broker: BrokerProcess
) -> None:
    origin = run(site, project, "-c", "import headwater.logtier.client as c; print(c.__file__)")
    assert origin.startswith(str(site)), "the test runs the packages of the wheel"
    assert "headwater" in run(site, project, "-m", "headwater", "version")
    topics = run(site, project, "-m", "headwater", "topic", "list", "--bootstrap-servers", headwater_broker.address)
    assert "RuntimeError" not in topics
    (project / "flow.yaml").write_text(PIPELINE)
    assert "flow" in run(site, project, "-m", "headwater", "pipeline", "validate", "flow.yaml")


def test_spark_finds_the_source_where_folders_have_our_names(
    site: Path, project: Path, headwater_broker: BrokerProcess
) -> None:
    topic = f"users-folder-{os.getpid()}"
    job = project / "job.py"
    job.write_text(JOB.replace("ADDRESS", headwater_broker.address).replace("TOPIC", topic))
    run(site, project, "-m", "headwater", "topic", "create", topic, "--bootstrap-servers", headwater_broker.address)
    assert "read 7" in run(site, project, str(job))
