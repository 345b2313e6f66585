"""What a user sees when a pipeline is wrong or fails: one message, an exit code, no stack trace."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headwater.cli.main import main
from headwater.pipelines.spark import session

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

HEAD = """\
pipeline: lines
topics:
  {prefix}.lines: {{value: string}}
stages:
"""


@pytest.fixture
def run(headwater: Any, topics: Any, tmp_path: Path) -> Any:
    """Run a pipeline whose stages are given, over three lines of text."""

    def start(stages: str) -> Any:
        path = tmp_path / "lines.yaml"
        path.write_text((HEAD + stages).format(prefix=topics.prefix))
        return headwater("pipeline", "run", str(path), "-b", topics.servers, "--state", str(tmp_path / "state"))

    return start


@pytest.fixture(scope="module")
def lasting_session() -> Iterator[None]:
    """A session that the command does not end: Spark starts once for the commands that `call` runs."""
    session.close_session()  # one that other tests have left
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(session, "close_session", lambda: None)
        yield
    session.close_session()


@pytest.fixture
def call(
    lasting_session: None,
    topics: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> Any:
    """The same as `run`, in this process."""
    monkeypatch.chdir(tmp_path)

    def start(stages: str, head: str = HEAD) -> Any:
        path = tmp_path / "lines.yaml"
        path.write_text((head + stages).format(prefix=topics.prefix))
        command = ["pipeline", "run", str(path), "-b", topics.servers, "--state", str(tmp_path / "state")]
        capfd.readouterr()
        code = main(command)
        return subprocess.CompletedProcess(command, code, *capfd.readouterr())

    return start


def test_every_mistake_is_told_at_its_line_before_anything_is_written(call: Any, tmp_path: Path) -> None:
    (tmp_path / "three.py").write_text("def three(rows):\n    return rows\n")
    done = call("""\
  - name: one
    from: {{topic: {prefix}.lines}}
    sql: |
      SELECT value,
             valu AS other
      FROM `{prefix}.lines`
    to: [{{topic: {prefix}.one}}]
  - name: two
    from: {{topic: {prefix}.lines}}
    expect: [{{name: known, that: nowhere > 1}}]
    to: [{{topic: {prefix}.two, key: upper(value)}}, {{delta: lake/two, partition_by: [missing]}}]
  - name: three
    from: {{topic: {prefix}.one}}
    python: {{file: three.py, function: three}}
    to: [{{topic: {prefix}.three}}]
  - name: four
    from: {{topic: {prefix}.lines}}
    sql: SELECT value, count(*) AS number FROM `{prefix}.lines` GROUP BY valu
    to: [{{topic: {prefix}.four}}]
""")
    assert done.returncode == 2
    lines = [line for line in done.stderr.splitlines() if "lines.yaml:" in line]
    found = [line.split("lines.yaml:", 1)[1] for line in lines]
    assert [line.split(":")[0] for line in found] == ["7", "14", "15", "22", "22"]
    assert "stages[0].sql: there is no column 'valu'" in found[0]
    assert "stages[1].expect[0].that: there is no column 'nowhere'" in found[1]
    assert "stages[1].to[1].partition_by[0]: there is no column 'missing'" in found[2]
    assert "there is no column 'valu'" in found[3]
    assert found[4].startswith("22:10: stages[3].sql: mode: append writes a group once it is final")
    assert "without a watermark" in found[4]
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "lake").exists()


def test_an_expectation_that_says_fail_stops_the_stage_before_it_writes(call: Any, topics: Any, headwater: Any) -> None:
    made = headwater("topic", "create", f"{topics.prefix}.lines", "--partitions", "1", "-b", topics.servers)
    assert made.returncode == 0, made.stderr
    topics.produce(f"{topics.prefix}.lines", [(None, b"good"), (None, b"bad"), (None, b"bad")])
    done = call("""\
  - name: one
    from: {{topic: {prefix}.lines}}
    expect: [{{name: is_good, that: value = 'good', otherwise: fail}}]
    to: [{{topic: {prefix}.one}}]
""")
    assert done.returncode == 1
    assert (
        "stage one: 2 rows do not meet the expectation is_good (value = 'good'); the first is offset 1" in done.stderr
    )
    assert "Traceback" not in done.stderr
    assert topics.read(f"{topics.prefix}.one") == []


def test_a_function_that_fails_on_a_row_is_one_line_with_its_reason(
    run: Any, topics: Any, headwater: Any, tmp_path: Path
) -> None:
    made = headwater("topic", "create", f"{topics.prefix}.lines", "--partitions", "1", "-b", topics.servers)
    assert made.returncode == 0, made.stderr
    topics.produce(f"{topics.prefix}.lines", [(None, b"1"), (None, b"x")])
    # The name is that of a module of the standard library: the user's folder must not be on the workers' path.
    (tmp_path / "numbers.py").write_text(
        "from pyspark.sql.functions import udf\n\n\ndef numbers(rows):\n"
        "    return rows.select(udf(lambda text: str(int(text)))('value').alias('value'))\n"
    )
    done = run("""\
  - name: one
    from: {{topic: {prefix}.lines}}
    python: {{file: numbers.py, function: numbers}}
    to: [{{topic: {prefix}.one}}]
""")
    assert done.returncode == 1
    assert "stage one: ValueError: invalid literal for int() with base 10: 'x'" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_topic_that_does_not_exist_is_told_with_its_line(run: Any, topics: Any) -> None:
    done = run("""\
  - name: one
    from: {{topic: {prefix}.linse}}
    to: [{{topic: {prefix}.one}}]
""")
    assert done.returncode == 2
    assert (
        f"lines.yaml:6:19: stages[0].from.topic: the topic '{topics.prefix}.linse' is neither declared" in done.stderr
    )
    assert f"did you mean '{topics.prefix}.lines'?" in done.stderr


def test_a_table_of_another_format_is_told_at_its_path(call: Any, tmp_path: Path) -> None:
    (tmp_path / "shops.csv").write_text("shop,city\n")
    tables = "tables:\n  shops: {{format: parquet, path: shops.csv}}\nstages:"
    done = call(
        "  - {{name: one, from: {{topic: {prefix}.lines, as: l}}, sql: SELECT l.* FROM l CROSS JOIN shops, "
        "to: [{{topic: {prefix}.one}}]}}\n",
        HEAD.replace("stages:", tables),
    )
    assert done.returncode == 2
    *phases, told = done.stderr.splitlines()
    assert phases == ["starting Spark", "looking at what the stages read and write"]
    assert "lines.yaml:5:34: tables.shops.path: cannot read the table shops" in told


def test_a_stage_that_reads_another_topic_than_its_checkpoint_is_told_so(run: Any, tmp_path: Path) -> None:
    offsets = tmp_path / "state" / "lines" / "one" / "checkpoint" / "offsets"
    offsets.mkdir(parents=True)
    (offsets / "0").write_text('v1\n{"batchWatermarkMs":0,"batchTimestampMs":0,"conf":{}}\n{"old":{"0":7}}')
    done = run("""\
  - name: one
    from: {{topic: {prefix}.lines}}
    to: [{{topic: {prefix}.one}}]
""")
    assert done.returncode == 2
    told = (
        "lines.yaml:6:19: stages[0].from.topic: the checkpoint of stage one does not fit: other input: the checkpoint"
    )
    assert f"{told} of stage one has read the topic 'old'" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_missing_java_is_told_before_anything_is_started(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    done = run("""\
  - name: one
    from: {{topic: {prefix}.lines}}
    to: [{{topic: {prefix}.one}}]
""")
    assert done.returncode == 1
    assert "Spark needs Java 17 or newer: install one" in done.stderr
    assert done.stderr.count("\n") == 1


def test_two_runs_cannot_share_a_state_folder(run: Any, tmp_path: Path) -> None:
    folder = tmp_path / "state" / "lines"
    folder.mkdir(parents=True)
    with open(folder / "lock", "w+", encoding="ascii") as lock:
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = run("""\
  - name: one
    from: {{topic: {prefix}.lines}}
    to: [{{topic: {prefix}.one}}]
""")
    assert done.returncode == 1
    assert f"belongs to a run that is still alive (process {os.getpid()})" in done.stderr
    assert done.stderr.count("\n") == 1


def test_validate_needs_no_broker_and_no_java(headwater: Any, tmp_path: Path) -> None:
    path = tmp_path / "lines.yaml"
    path.write_text(HEAD.format(prefix="p") + "  - {name: one, from: {topic: p.lines}, to: [{topic: p.one}]}\n")
    done = headwater("pipeline", "validate", str(path), "-o", "json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["stages"] == ["one"]
    planned = headwater("pipeline", "plan", str(path), "-o", "json")
    assert json.loads(planned.stdout)["stages"][0]["reads"][0]["target"] == "p.lines"
