"""Each record once: ranges that are written down, chains, what the target has already, drivers that end in between."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer

from headwater.pipelines.file_systems.file_system import FileSystemError
from headwater.pipelines.file_systems.opening import file_system
from headwater.pipelines.loads import loader
from headwater.pipelines.loads.loader import TopicLoad
from headwater.pipelines.loads.request import LoadOutcome, LoadStatus
from headwater.pipelines.loads.targets import file_target
from headwater.pipelines.loads.targets.file_target import FileTarget
from headwater.pipelines.loads.targets.records import Commit, LoadRecords
from headwater.pipelines.loads.targets.target import Writing
from headwater.pipelines.loads.verification import TargetVerification, verify
from tests.spark.loads.conftest import Dock

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow

FORMS = ["parquet", "delta"]
#: Of two loads at once: of files and, each fourth time, of a table.
ATTEMPTS = 8
HOUR_MS = 3_600_000
MIDNIGHT_MS = 1_356_998_400_000  # 2013-01-01


def numbers(count: int, start: int = 0) -> list[Any]:
    return [{"n": n} for n in range(start, start + count)]


def versions(table: str) -> int:
    """The number of a Delta table's commits."""
    return len(list(Path(table).glob("_delta_log/*.json")))


def whole(partitions: int, count: int) -> list[tuple[int, int]]:
    return [(partition, offset) for partition in range(partitions) for offset in range(count)]


def test_loads_go_on_where_the_last_one_ended(dock: Dock, tmp_path: Path) -> None:
    dock.create()
    target = f"{tmp_path}/lake"
    dock.produce(numbers(10))
    first = dock.load(target)
    assert dock.load(target).outcome is LoadStatus.NOTHING_NEW
    dock.produce(numbers(6))
    second = dock.load(target)
    assert [outcome.manifest.rows for outcome in (first, second) if outcome.manifest] == [10, 6]
    assert dock.offsets(target) == whole(2, 8)
    assert second.manifest is not None
    assert second.manifest.chain_ends == {0: 8, 1: 8}
    assert second.manifest.sequence == 2


def test_a_named_load_keeps_its_range(dock: Dock, tmp_path: Path) -> None:
    dock.create()
    target = f"{tmp_path}/lake"
    dock.produce(numbers(10))
    assert dock.load(target, load_id="five").outcome is LoadStatus.LOADED
    dock.produce(numbers(10))
    again = dock.load(target, load_id="five")
    assert again.outcome is LoadStatus.ALREADY_LOADED
    assert str(again).startswith(f"{dock.topic}: five is loaded already: 10 rows in ")
    assert dock.offsets(target) == whole(2, 5)
    nothing = dock.load(target, load_id="none", start="0", until="0")
    assert nothing.outcome is LoadStatus.NOTHING_NEW
    # What it was when its range was written down, it stays.
    assert dock.load(target, load_id="none").outcome is LoadStatus.NOTHING_NEW
    assert dock.load(target, load_id="six").outcome is LoadStatus.LOADED
    assert dock.offsets(target) == whole(2, 10)


def test_an_older_hour_is_loaded_after_a_newer(dock: Dock, tmp_path: Path) -> None:
    dock.create()
    target = f"{tmp_path}/lake"
    for hour in range(3):
        dock.produce(numbers(10), timestamp_ms=MIDNIGHT_MS + hour * HOUR_MS)

    def hour_of(hour: int, **more: Any) -> LoadOutcome:
        at = f"2013-01-01T0{hour}:00:00Z", f"2013-01-01T0{hour + 1}:00:00Z"
        return dock.load(target, start=at[0], until=at[1], load_id=f"h{hour}", **more)

    assert hour_of(1).outcome is LoadStatus.LOADED
    assert hour_of(0).outcome is LoadStatus.LOADED
    assert dock.offsets(target) == whole(2, 10)
    assert hour_of(0).outcome is hour_of(1).outcome is LoadStatus.ALREADY_LOADED
    refused = dock.load(target, start="earliest", until="latest")
    assert refused.is_user_error
    assert "the target has offsets of" in refused.error
    assert "(partition 0: 0 to 9, partition 1: 0 to 9): --missing loads what it lacks" in refused.error
    rest = dock.load(target, start="earliest", until="latest", missing=True)
    assert rest.manifest is not None
    assert rest.manifest.rows == 10
    assert dock.offsets(target) == whole(2, 15)
    assert dock.load(target).outcome is LoadStatus.NOTHING_NEW


@pytest.mark.parametrize("form", FORMS)
def test_a_load_is_replaced(dock: Dock, tmp_path: Path, form: str) -> None:
    dock.create()
    target = f"{tmp_path}/lake"
    dock.produce(numbers(10))
    dock.load(target, format=form, load_id="a")
    dock.produce(numbers(10))
    dock.load(target, format=form, load_id="b")
    before = versions(target)
    again = dock.load(target, format=form, replace="a")
    assert (again.error, again.outcome) == ("", LoadStatus.LOADED)
    assert again.manifest is not None
    assert (again.manifest.rows, again.manifest.plan.id, again.manifest.sequence) == (10, "a", 3)
    assert dock.offsets(target, form) == whole(2, 10)
    if form == "delta":
        assert versions(target) == before + 1
    assert dock.load(target, format=form, load_id="a").outcome is LoadStatus.ALREADY_LOADED
    if form == "parquet":  # what is replaced may be a replacement
        assert dock.load(target, format=form, replace="a").outcome is LoadStatus.LOADED
        assert dock.offsets(target, form) == whole(2, 10)
    assert "has no load c that could be replaced" in dock.load(target, format=form, replace="c").error
    dock.delete_records({0: 2})
    assert "records of it are gone by retention; it stays as it is" in dock.load(target, format=form, replace="a").error


@pytest.mark.parametrize("form", FORMS)
def test_a_gap_by_retention_is_an_error_or_recorded(dock: Dock, tmp_path: Path, form: str) -> None:
    dock.create()
    target = f"{tmp_path}/lake"
    dock.produce(numbers(10))
    dock.load(target, format=form)
    dock.produce(numbers(10))
    dock.delete_records({0: 7})
    failed = dock.load(target, format=form)
    assert failed.is_user_error
    assert "2 offsets of" in failed.error
    assert "are gone by retention before they were loaded (partition 0: 5 to 6): --on-gap record" in failed.error
    went_on = dock.load(target, format=form, on_gap="record")
    assert went_on.manifest is not None
    assert went_on.manifest.rows == 8
    assert went_on.manifest.plan.gaps == {0: ((5, 7),)}
    assert dock.load(target, format=form).outcome is LoadStatus.NOTHING_NEW
    dock.delete_records({0: 10})
    dock.produce(numbers(4))
    dock.delete_records({0: 12})
    alone = dock.load(target, format=form, start="0:10", until="0:12", on_gap="record")
    assert alone.manifest is not None
    assert (alone.manifest.rows, alone.manifest.plan.gaps) == (0, {0: ((10, 12),)})
    assert dock.load(target, format=form).outcome is LoadStatus.LOADED


def test_aborted_records_are_in_no_load(dock: Dock, tmp_path: Path) -> None:
    dock.create(1)
    producer = Producer({"bootstrap.servers": dock.servers, "transactional.id": dock.topic})
    producer.init_transactions()
    for commits in (True, False, True):
        producer.begin_transaction()
        producer.produce(dock.topic, b'{"n": 1}')
        producer.flush()
        producer.commit_transaction() if commits else producer.abort_transaction()
    outcome = dock.load(f"{tmp_path}/lake")
    assert outcome.manifest is not None
    assert outcome.manifest.rows == 2
    assert outcome.manifest.chain_ends == {0: 6}  # with the markers
    producer.begin_transaction()
    producer.produce(dock.topic, b'{"n": 1}')
    producer.flush()
    assert dock.load(f"{tmp_path}/lake").outcome is LoadStatus.NOTHING_NEW
    producer.abort_transaction()
    last = dock.load(f"{tmp_path}/lake")
    assert last.manifest is not None
    assert (last.manifest.rows, last.manifest.files) == (0, ())
    assert last.manifest.chain_ends == {0: 8}


class EndedError(BaseException):
    """Where a driver is killed."""


def kill_at(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, *, after: int = 0) -> None:
    """End the driver when a function is called for the n-th time, before it does anything."""
    original: Callable[..., Any] = getattr(owner, name)
    calls = 0

    def called(*arguments: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls > after:
            raise EndedError
        return original(*arguments, **named)

    monkeypatch.setattr(owner, name, called)


@pytest.mark.parametrize(
    ("owner", "name", "after"),
    [
        (LoadRecords, "write_plan", 0),
        (file_target, "described_files", 0),
        (LoadRecords, "create_commit", 0),
        (FileTarget, "_carry_out", 0),
        (FileTarget, "_move", 1),
        (LoadRecords, "write_manifest", 0),
    ],
)
def test_a_driver_that_ends_anywhere_is_repeated(
    dock: Dock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, after: int
) -> None:
    monkeypatch.setattr("headwater.pipelines.loads.rows.TASK_ROWS_MIN", 5)
    dock.create()
    dock.produce(numbers(20))
    target = f"{tmp_path}/lake"
    with monkeypatch.context() as patched:
        kill_at(patched, owner, name, after=after)
        with pytest.raises(EndedError):
            dock.load(target, load_id="a")
    dock.produce(numbers(10))
    again = dock.load(target, load_id="a")
    assert again.outcome in (LoadStatus.LOADED, LoadStatus.ALREADY_LOADED)
    assert again.manifest is not None
    assert again.manifest.rows == (30 if name == "write_plan" else 20)
    assert len(dock.offsets(target)) == again.manifest.rows
    assert not dock.load(target).error
    assert dock.offsets(target) == whole(2, 15)
    assert list((tmp_path / "lake" / "_headwater" / "staged").iterdir()) == []


def test_a_commit_whose_answer_is_lost_is_carried_out_by_the_next(
    dock: Dock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dock.create()
    dock.produce(numbers(20))
    target = f"{tmp_path}/lake"
    original = LoadRecords.create_commit

    def lost(self: LoadRecords, commit: Commit) -> bool:
        original(self, commit)
        raise FileSystemError("the NameNode went down")

    with monkeypatch.context() as patched:
        patched.setattr(LoadRecords, "create_commit", lost)
        assert dock.load(target, load_id="a").error == "the NameNode went down"
    assert dock.load(target, load_id="a").outcome is LoadStatus.ALREADY_LOADED
    assert dock.offsets(target) == whole(2, 10)


def test_a_driver_that_wakes_after_its_commit_leaves_the_next_ones_files(
    dock: Dock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It froze between its commit and the renames; the next driver has carried them out, and is writing."""
    dock.create()
    dock.produce(numbers(20))
    target = f"{tmp_path}/lake"
    original, before = FileTarget._carry_out, TopicLoad._before_commit
    first: list[tuple[FileTarget, Commit]] = []

    def freezes(self: FileTarget, commit: Commit) -> None:
        if not first:
            first.append((self, commit))
            raise EndedError
        original(self, commit)

    def wakes(self: TopicLoad) -> None:
        before(self)
        zombie, commit = first[0]
        original(zombie, commit)
        for name in (*zombie._left_over, "its own attempt"):
            zombie._remove(f"{target}/_headwater/staged/{name}")

    with monkeypatch.context() as patched:
        patched.setattr(FileTarget, "_carry_out", freezes)
        with pytest.raises(EndedError):
            dock.load(target)
        dock.produce(numbers(10))
        patched.setattr(TopicLoad, "_before_commit", wakes)
        assert dock.load(target).error == ""
    assert dock.offsets(target) == whole(2, 15)


def test_a_written_range_that_retention_has_cut_is_a_gap(
    dock: Dock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dock.create()
    dock.produce(numbers(20))
    target = f"{tmp_path}/lake"
    with monkeypatch.context() as patched:
        kill_at(patched, FileTarget, "write")
        with pytest.raises(EndedError):
            dock.load(target, load_id="a")
    dock.delete_records({0: 4})
    assert "4 offsets of" in dock.load(target, load_id="a").error
    rest = dock.load(target, load_id="a", on_gap="record")
    assert rest.manifest is not None
    assert (rest.manifest.rows, rest.manifest.plan.gaps) == (16, {0: ((0, 4),)})


def test_what_was_tried_first_does_not_bind_an_empty_target(dock: Dock, tmp_path: Path) -> None:
    dock.create()
    dock.produce(numbers(4))
    assert "lies in the future" in dock.load(f"{tmp_path}/lake", format="delta", until="2100-01-01").error
    assert dock.load(f"{tmp_path}/lake", format="parquet").error == ""
    assert "holds parquet: give --format parquet" in dock.load(f"{tmp_path}/lake", format="delta").error


def test_a_table_that_would_forget_its_loads_is_refused(dock: Dock, tmp_path: Path) -> None:
    dock.create()
    dock.produce(numbers(4))
    target = f"{tmp_path}/lake"
    assert dock.load(target, format="delta").error == ""
    name = "delta.setTransactionRetentionDuration"
    dock.spark.sql(f"ALTER TABLE delta.`{target}` SET TBLPROPERTIES ('{name}' = 'interval 1 day')")
    assert f"the table has the property {name} = interval 1 day" in dock.load(target, format="delta").error


def test_another_load_carries_out_what_the_first_committed(
    dock: Dock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dock.create()
    dock.produce(numbers(20))
    target = f"{tmp_path}/lake"
    with monkeypatch.context() as patched:
        kill_at(patched, FileTarget, "_move", after=0)
        with pytest.raises(EndedError):
            dock.load(target, load_id="a")
    dock.produce(numbers(10))
    assert dock.load(target, load_id="b").outcome is LoadStatus.LOADED
    assert dock.offsets(target) == whole(2, 15)
    assert dock.load(target, load_id="a").outcome is LoadStatus.ALREADY_LOADED


def test_a_tables_manifest_is_made_again_from_its_commit(
    dock: Dock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dock.create()
    dock.produce(numbers(20))
    target = f"{tmp_path}/lake"
    with monkeypatch.context() as patched:
        kill_at(patched, LoadRecords, "write_manifest")
        with pytest.raises(EndedError):
            dock.load(target, load_id="a", format="delta")
    again = dock.load(target, load_id="a", format="delta")
    assert again.outcome is LoadStatus.ALREADY_LOADED
    assert again.manifest is not None
    assert again.manifest.rows == 20
    assert dock.offsets(target, "delta") == whole(2, 10)


@pytest.mark.parametrize(("form", "is_confirmed"), [("parquet", False), ("parquet", True), ("delta", True)])
def test_of_two_drivers_one_adds_its_rows(
    dock: Dock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str, is_confirmed: bool
) -> None:
    """The first driver is frozen before its commit; the second takes the lock over, and loads other ranges."""
    dock.create()
    dock.produce(numbers(20))
    target = f"{tmp_path}/lake"
    original = TopicLoad._before_commit
    seconds: list[LoadOutcome] = []

    def frozen(self: TopicLoad) -> None:
        if is_confirmed:
            original(self)
        if not seconds:
            assert self._lock is not None
            self._lock._ended.set()  # its session ends
            assert self._lock._thread is not None
            self._lock._thread.join()
            seconds.append(LoadOutcome("", "", LoadStatus.FAILED))
            seconds[0] = dock.load(target, format=form, start="0", until="9")
        if not is_confirmed:
            original(self)

    monkeypatch.setattr(loader.TopicLoad, "_before_commit", frozen)
    first = dock.load(target, format=form)
    assert seconds[0].error == ""
    assert first.outcome is LoadStatus.FAILED
    assert ("was committed meanwhile" if is_confirmed else "another process has taken") in first.error
    assert dock.offsets(target, form) == whole(2, 9)
    assert dock.load(target, format=form).outcome is LoadStatus.LOADED
    assert dock.offsets(target, form) == whole(2, 10)


def test_a_second_load_waits_or_names_the_first(dock: Dock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dock.create()
    dock.produce(numbers(4))
    target = f"{tmp_path}/lake"
    original = TopicLoad._before_commit
    seconds: list[LoadOutcome] = []

    def meanwhile(self: TopicLoad) -> None:
        if not seconds:
            seconds.append(LoadOutcome("", "", LoadStatus.FAILED))
            seconds[0] = dock.load(target)
        original(self)

    monkeypatch.setattr(loader.TopicLoad, "_before_commit", meanwhile)
    assert dock.load(target).outcome is LoadStatus.LOADED
    assert not seconds[0].is_user_error
    assert f"the target {target} is held by load of {dock.topic} (machine " in seconds[0].error


def test_many_loads_at_once_end(dock: Dock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """More than are prepared ahead, each slower to prepare than to run; and one that nobody foresaw."""
    ran: list[str] = []

    def prepare(self: TopicLoad) -> None:
        time.sleep(0.01)
        if self.request.topic == "t7":
            raise ZeroDivisionError("nobody foresaw it")

    def run(self: TopicLoad, *_: Any) -> LoadOutcome:
        ran.append(self.request.topic)
        return LoadOutcome(self.request.topic, self.request.target, LoadStatus.NOTHING_NEW)

    monkeypatch.setattr(TopicLoad, "prepare", prepare)
    monkeypatch.setattr(TopicLoad, "run", run)
    names = [f"t{number}" for number in range(400)]
    outcomes = dock.run(f"{tmp_path}/{{topic}}", *names, json_values=False).run(lambda: dock.spark)
    assert [outcome.topic for outcome in outcomes] == names
    assert sorted(ran) == sorted(set(names) - {"t7"})
    assert outcomes[7].error == "unexpected ZeroDivisionError: nobody foresaw it"


def test_a_stopped_run_commits_nothing(dock: Dock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dock.create()
    dock.produce(numbers(4))
    run = dock.run(f"{tmp_path}/lake")
    original = FileTarget.write

    def stopping(self: FileTarget, spark: SparkSession, writing: Writing) -> Any:
        run.stop()
        return original(self, spark, writing)

    monkeypatch.setattr(FileTarget, "write", stopping)
    [outcome] = run.run(lambda: dock.spark)
    assert outcome.error
    assert dock.load(f"{tmp_path}/lake").outcome is LoadStatus.LOADED


def test_what_cannot_be_is_refused_in_a_line(dock: Dock, tmp_path: Path) -> None:
    dock.create()
    dock.produce(numbers(10))

    def refused(to: str = f"{tmp_path}/lake", **options: Any) -> str:
        outcome = dock.load(to, **options)
        assert outcome.outcome is LoadStatus.FAILED
        assert outcome.is_user_error, outcome.error
        return outcome.error

    assert refused(until="9") == (
        f"--until is offset 9 of {dock.topic}-0, which ends at 5: wait for the records, or ask for less"
    )
    assert "--until 2100-01-01 lies in the future" in refused(until="2100-01-01")
    assert "from offset 4 until 2: --until lies before --from" in refused(start="4", until="2")
    assert "--until names partition 7" in refused(until="7:3")
    assert "--partition-by: " in refused(partition_by=("nothing",))
    assert "cannot name a load" in refused(load_id="../x")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "report.csv").write_text("x")
    assert "holds something else (report.csv)" in refused(f"{tmp_path}/other")
    assert "holds files and is no Delta table" in refused(f"{tmp_path}/other", format="delta")
    assert "is a file: name a folder" in refused(f"{tmp_path}/other/report.csv")
    assert dock.load(f"{tmp_path}/lake").outcome is LoadStatus.LOADED
    assert "holds parquet: give --format parquet" in refused(format="orc")
    name = dock.topic
    dock.create(name=f"{name}-2")
    assert f"holds loads of topic {name}: name another target" in dock.load(f"{tmp_path}/lake", f"{name}-2").error
    assert "there is no topic 'gone'" in dock.load(f"{tmp_path}/gone", "gone").error
    dock.delete()
    dock.create()
    dock.produce(numbers(10))
    assert "the topic was made anew, and its offsets mean others" in refused()


@pytest.mark.parametrize("form", FORMS)
def test_a_changed_schema_is_refused_or_merged(dock: Dock, tmp_path: Path, form: str) -> None:
    dock.create()
    target = f"{tmp_path}/lake"
    dock.produce(numbers(4))
    assert dock.load(target, format=form).error == ""
    schema = tmp_path / "flight.json"
    text = schema.read_text()
    schema.write_text(text.replace('"properties": {', '"properties": {"delay": {"type": "integer"}, '))
    dock.produce([{"n": 1, "delay": 5}])
    assert "the target has no column delay: add it with --merge-schema" in dock.load(target, format=form).error
    assert dock.load(target, format=form, merge_schema=True).error == ""
    schema.write_text(text.replace('"n": {"type": "integer"}', '"n": {"type": "string"}'))
    dock.produce([{"n": "x"}])
    changed = dock.load(target, format=form, merge_schema=True)
    assert "column n was long and is string now: load into another target" in changed.error
    assert dock.offsets(target, form) == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)]


def test_one_failure_stops_no_other(dock: Dock, tmp_path: Path) -> None:
    dock.create()
    dock.produce(numbers(4))
    names = [dock.topic, "no-such-topic", *(f"{dock.topic}-{number}" for number in range(6))]
    for name in names[2:]:
        dock.create(1, name)
    outcomes = dock.run(f"{tmp_path}/{{topic}}", *names, format="delta").run(lambda: dock.spark)
    assert [outcome.topic for outcome in outcomes] == names
    assert [bool(outcome.error) for outcome in outcomes] == [False, True, *[False] * 6]
    assert {outcome.outcome for outcome in outcomes[2:]} == {LoadStatus.NOTHING_NEW}


@pytest.mark.parametrize("form", [*FORMS, "avro"])
def test_a_target_is_verified(dock: Dock, tmp_path: Path, form: str) -> None:
    dock.create()
    target = f"{tmp_path}/lake"
    dock.produce(numbers(20))

    def verified() -> TargetVerification:
        return verify(dock.spark, file_system(target), target, dock.servers)

    dock.load(target, format=form, until="4")
    dock.load(target, format=form, start="6", until="8")
    if form == "parquet":  # the manifests of any format
        gaps = "partition 0: 4 to 5, partition 1: 4 to 5"
        assert verified().problems == (f"4 offsets between the loads were never loaded: {gaps}",)
    dock.load(target, format=form, start="4", until="8", missing=True)
    if form == "delta":  # compacted, it is still whole
        table = f"delta.`{target}`"
        dock.spark.sql(f"OPTIMIZE {table}")
        dock.spark.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
        dock.spark.sql(f"VACUUM {table} RETAIN 0 HOURS")
    whole_target = verified()
    assert (whole_target.problems, whole_target.rows, whole_target.loads) == ((), 16, 3)
    assert whole_target.log_offsets == 16
    if form == "delta":
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr("headwater.pipelines.loads.offsets.log_state.topic_configs", lambda *_: {})
            [unknown] = verified().problems
        assert unknown.startswith("rows that the log lacks were not looked for: the cleanup.policy of ")
        dock.spark.sql(f"DELETE FROM {table} WHERE _partition = 0 AND _offset = 3")
        dock.spark.sql(f"INSERT INTO {table} SELECT * FROM {table} WHERE _partition = 1 AND _offset = 5")
        assert verified().problems == (
            "partition 1, offset 5 is there 2 times",
            "partition 0, offset 3 is in the log and not in the target",
        )
        return
    first, second = sorted(Path(target).glob("load-*"))[:2]
    content = first.read_bytes()
    first.write_bytes(content[:-9] + b"x" + content[-8:])
    second.rename(tmp_path / "lost")
    (Path(target) / "stray.parquet").write_bytes(b"")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("headwater.pipelines.loads.verification._rows", lambda *_: None)  # unreadable by now
        problems = verify(dock.spark, file_system(target), target, None).problems
    assert [problem.partition(" ")[2] for problem in problems] == [
        "of a load is gone",
        "is of no load",
        "has another content than it had (SHA-256)",
    ]


def test_two_loads_at_one_target_at_once_many_times(dock: Dock, tmp_path: Path) -> None:
    dock.create()
    target = f"{tmp_path}/lake"
    for attempt in range(ATTEMPTS):
        dock.produce(numbers(4))
        with ThreadPoolExecutor(2) as pool:
            form = "delta" if attempt % 4 == 3 else "parquet"
            waits = 60.0 if attempt % 2 else 0.0
            both = [pool.submit(dock.load, f"{target}-{form}", format=form, wait_s=waits) for _ in range(2)]
            outcomes = [future.result() for future in both]
        found = sorted(outcome.outcome.value for outcome in outcomes)
        assert found in (["loaded", "nothing new"], ["failed", "loaded"]), [str(outcome) for outcome in outcomes]
        if "failed" in found:
            assert waits == 0.0
            [error] = [outcome.error for outcome in outcomes if outcome.error]
            assert " is held by load of " in error
    dock.load(f"{target}-delta", format="delta")
    dock.load(f"{target}-parquet")
    for form in FORMS:
        assert dock.offsets(f"{target}-{form}", form) == whole(2, 2 * ATTEMPTS)
