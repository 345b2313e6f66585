"""Pipelines on a real standalone cluster: code shipped, the same results, and a Worker that dies in the middle."""

from __future__ import annotations

import dataclasses
import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from headwater.pipelines.engine.runner import Runner
from headwater.pipelines.errors import PipelineFailed
from headwater.pipelines.spark.cluster_check import ClusterError, asking, check_cluster
from headwater.pipelines.spark.shipping import FOLDER
from tests.spark.pipelines.conftest import Lab

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.conftest import BrokerProcess
    from tests.spark.cluster.conftest import Cluster

pytestmark = pytest.mark.slow

ROWS = 600
KEYS = 7
CHECKOUT = str(Path(__file__).resolve().parents[3])

PIPELINE = """\
pipeline: shared
topics:
  @numbers: {partitions: 3, value: json, schema: number.json}
  @doubled: {partitions: 3, value: json}
  @sums: {partitions: 2, value: json}
stages:
  - name: doubled
    from: {topic: @numbers, max_offsets_per_trigger: 300}
    expect: [{name: positive, that: n >= 0, otherwise: dead_letter}]
    steps:
      - python: {file: own.py, function: double}
      - sql: SELECT *, k AS key2 FROM input
    to:
      - {topic: @doubled, key: k}
      - {delta: lake/doubled}
  - name: sums
    from: {topic: @doubled, max_offsets_per_trigger: 300}
    steps:
      - sql: SELECT k, twice FROM `@doubled`
      - stateful: {file: own.py, processor: Running, by: [k], output: "k STRING, total BIGINT, seen BIGINT"}
    mode: update
    to:
      - {topic: @sums, key: k}
"""
OWN = """\
FACTOR = 2

def double(rows):
    def in_task(batches):
        import pyarrow as pa
        import pyarrow.compute as pc
        for batch in batches:
            twice = pc.multiply(batch.column("n"), FACTOR)
            yield pa.RecordBatch.from_arrays([*batch.columns, twice], [*batch.schema.names, "twice"])
    schema = ", ".join(f"`{f.name}` {f.dataType.simpleString()}" for f in rows.schema.fields)
    return rows.mapInArrow(in_task, schema + ", twice BIGINT")



from collections.abc import Iterator

from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor
from pyspark.sql.types import LongType, StructField, StructType


class Running(StatefulProcessor):
    def init(self, handle) -> None:
        fields = [StructField("total", LongType()), StructField("seen", LongType())]
        self.state = handle.getValueState("sums", StructType(fields))

    def handleInputRows(self, key, rows, timers) -> Iterator[Row]:
        total, seen = self.state.get() if self.state.exists() else (0, 0)
        for row in rows:
            total, seen = total + row.twice, seen + 1
        self.state.update((total, seen))
        yield Row(k=key[0], total=total, seen=seen)

    def close(self) -> None:
        pass
"""
SCHEMA = {"type": "object", "required": ["n", "k"], "properties": {"n": {"type": "integer"}, "k": {"type": "string"}}}


class ClusterLab(Lab):
    """A lab whose pipelines run on the cluster."""

    master = ""

    def runner(self, text: str, **more: Any) -> Runner:
        return super().runner(text, spark_master=self.master, **more)


@pytest.fixture
def lab(cluster: Cluster, cluster_spark: SparkSession, headwater_broker: BrokerProcess, tmp_path: Path) -> ClusterLab:
    made = ClusterLab(cluster_spark, headwater_broker.address, tmp_path)
    made.master = cluster.url
    made.write("own.py", OWN)
    made.write("number.json", json.dumps(SCHEMA))
    return made


def produced(lab: Lab) -> tuple[list[int], dict[str, int]]:
    """Good and bad numbers are sent; gives the good ones, and what the sums must come to."""
    numbers = [-n if n % 10 == 9 else n for n in range(ROWS)]
    lab.produce("@numbers", [(f"k{abs(n) % KEYS}", {"n": n, "k": f"k{abs(n) % KEYS}"}) for n in numbers], partitions=3)
    good = [n for n in numbers if n >= 0]
    sums: Counter[str] = Counter()
    for n in good:
        sums[f"k{n % KEYS}"] += 2 * n
    return good, dict(sums)


def check_outputs(lab: Lab, good: list[int], sums: dict[str, int]) -> None:
    """Each record stands once everywhere, in the source's order; the state has counted each once."""
    doubled = [seen.json for seen in lab.read("@doubled")]
    assert Counter(value["n"] for value in doubled) == Counter(good)
    assert all(value["twice"] == 2 * value["n"] for value in doubled)
    for key in sums:
        of_key = [value["n"] for value in doubled if value["k"] == key]
        assert of_key == sorted(of_key), f"the order of {key}"
    assert Counter(lab.delta("lake/doubled", "n", "twice")) == Counter((n, 2 * n) for n in good)
    letters = [json.loads(seen.value or b"")["n"] for seen in lab.read("@numbers.dead_letters")]
    assert Counter(letters) == Counter(n for n in (-n for n in range(ROWS) if n % 10 == 9))
    latest = {value["k"]: value for value in lab.values("@sums")}
    assert {key: value["total"] for key, value in latest.items()} == sums
    assert sum(value["seen"] for value in latest.values()) == len(good)


def imported(_rows: Any) -> Iterator[Any]:
    """A task: where it runs, and the files of what it has of ours."""
    import os
    import sys

    import pyarrow as pa

    import headwater.pipelines.datasource.compiled
    import headwater.pipelines.sinks.exactly_once.exactly_once_tasks
    import pyspark_headwater

    headwater.pipelines.datasource.compiled.warm_cache()
    files = {
        name: module.__file__
        for name, module in sys.modules.items()
        if name.partition(".")[0] in ("pyspark_headwater", "headwater", "tests") and getattr(module, "__file__", None)
    }
    from headwater.logtier.records import columns_kernels
    from headwater.pipelines.datasource import json_kernels

    modules = (columns_kernels, json_kernels)
    kernels = [one for module in modules for one in vars(module).values() if hasattr(one, "stats")]
    compiled = sum(sum(kernel.stats.cache_misses.values()) for kernel in kernels)
    found = {"cwd": os.getcwd(), "files": files, "compiled": compiled, "source": pyspark_headwater.__name__}
    for _ in _rows:
        pass
    yield pa.RecordBatch.from_pydict({"found": [json.dumps(found)]})


def test_tasks_import_our_code_from_what_was_shipped(cluster: Cluster, cluster_spark: SparkSession) -> None:
    # A function of a test's module would be looked for on the workers, where there is none.
    from pyspark import cloudpickle

    import tests.spark.cluster.test_cluster as this

    cloudpickle.register_pickle_by_value(this)  # type: ignore[no-untyped-call]
    frame = cluster_spark.range(4).repartition(4).mapInArrow(imported, "found STRING")
    answers = [json.loads(row.found) for row in frame.collect()]
    assert len(answers) == 4
    for answer in answers:
        assert str(cluster.folder) in answer["cwd"]
        files = answer["files"]
        sinks, records = (
            "headwater.pipelines.sinks.exactly_once.exactly_once_tasks",
            "headwater.logtier.records.columns",
        )
        assert {sinks, records, "pyspark_headwater"} <= set(files)
        elsewhere = {name: file for name, file in files.items() if not file.startswith(f"{answer['cwd']}/{FOLDER}/")}
        assert elsewhere == {}
        assert answer["compiled"] == 0, "the kernels came compiled"


def test_a_pipeline_with_python_steps_and_state_gives_the_same_although_workers_die_in_micro_batches(
    cluster: Cluster, lab: ClusterLab
) -> None:
    good, sums = produced(lab)
    killed: list[str] = []
    threads: list[threading.Thread] = []
    # With what was computed and kept; while it sends, or shortly after; just before it sends. Once each: a batch that
    # is written again comes by again.
    pauses_s = {("doubled", 0, "computed"): 0.0, ("doubled", 1, "transaction_open"): 0.1}
    pauses_s["sums", 0, "transaction_open"] = 0.0

    def kill(pause_s: float) -> None:
        time.sleep(pause_s)
        cluster.kill_worker()
        cluster.start_worker()

    def on_step(stage: str, batch: int, step: str) -> None:
        pause_s = pauses_s.pop((stage, batch, step), None)
        if pause_s is None:
            return
        killed.append(f"{stage} {step}")
        threads.append(threading.Thread(target=kill, args=(pause_s,)))
        threads[-1].start()
        if not pause_s:
            threads[-1].join()

    lab.run(PIPELINE, on_step=on_step)
    for thread in threads:
        thread.join()
    assert killed == ["doubled computed", "doubled transaction_open", "sums transaction_open"]
    check_outputs(lab, good, sums)


def test_a_machine_without_a_library_is_named_before_anything_runs(
    cluster_spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert check_cluster(cluster_spark, str(tmp_path)) == []
    monkeypatch.setattr("headwater.pipelines.spark.cluster_check.LIBRARIES", ("numpy", "no_such_library"))
    with pytest.raises(ClusterError, match=r"has no no_such_library: install Headwater's dependencies there"):
        check_cluster(cluster_spark, str(tmp_path))


def test_a_stage_with_state_is_refused_where_a_machine_does_not_see_the_state_folder(
    lab: ClusterLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    def elsewhere(libraries: tuple[str, ...], token: str) -> Any:
        return asking(libraries, token + ".of-another-machine")

    monkeypatch.setattr("headwater.pipelines.spark.cluster_check.asking", elsewhere)
    lab.produce("@numbers", [("k1", {"n": 1, "k": "k1"})], partitions=3)
    lab.run(PIPELINE, stages=["doubled"])
    assert len(lab.values("@doubled")) == 1, "a stage without state needs no shared folder"
    with pytest.raises(PipelineFailed, match=r"stage sums keeps state, and \S+ does not see the folder .*sums"):
        lab.run(PIPELINE, stages=["sums"])


def test_a_state_folder_that_is_a_url_is_refused_with_the_way_out(lab: ClusterLab) -> None:
    runner = lab.runner(PIPELINE)
    options = dataclasses.replace(runner._options, state="hdfs://lake/state")
    with pytest.raises(PipelineFailed, match="must be a path of this machine, not a URL: checkpoints are"):
        Runner(runner._loaded, options, runner._ensure_topics)
