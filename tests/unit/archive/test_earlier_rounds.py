"""Files of failed rounds are looked for twice; tasks that cannot write are asked again after a while."""

from __future__ import annotations

from headwater.pipelines.archive import earlier_rounds
from headwater.pipelines.archive.earlier_rounds import FAILED_MAX, REFUSED_S, EarlierRounds, refusal, written_by

WORKER = """An error occurred while calling o95.collect: Job aborted due to stage failure: Task 0 in stage 3.0 failed
Traceback (most recent call last):
  File "file_writing.py", line 90, in write
headwater.pipelines.file_systems.file_system.{}: hdfs://nn/lake/t: WebHDFS does not answer at http://nn:9870

\tat org.apache.spark.api.python.BasePythonRunner
"""


def test_a_failed_round_is_swept_at_once_and_before_the_next_one() -> None:
    earlier, seen = EarlierRounds(lambda: 0.0), []
    for failing in ("a", "b", "", ""):
        if failing:
            earlier.has_failed(failing)
        seen.append(earlier.failed)
        earlier.swept()
    assert seen == [("a",), ("a", "b"), ("b",), ()]


def test_what_could_not_be_swept_is_kept_for_the_newest_rounds() -> None:
    earlier = EarlierRounds(lambda: 0.0)
    for number in range(FAILED_MAX + 2):
        earlier.has_failed(f"r{number}")
    assert len(earlier.failed) == FAILED_MAX
    assert (earlier.failed[0], earlier.failed[-1]) == ("r2", f"r{FAILED_MAX + 1}")


def test_only_files_of_these_rounds_are_theirs() -> None:
    spark = "part-00000-0f0e8a1c-c000.snappy.parquet"
    names = ["_delta_log", "_headwater", spark, f"{earlier_rounds.file_prefix('a')}1.parquet", "part-ab-1.parquet"]
    assert written_by(["a", "b"], names) == ["part-a-1.parquet"]
    assert written_by([], names) == []


def test_tasks_that_cannot_write_are_asked_again_after_a_while() -> None:
    now_s = 5.0
    earlier = EarlierRounds(lambda: now_s)
    asked = [earlier.tasks_write]
    told = [earlier.refused()]
    asked.append(earlier.tasks_write)
    now_s += REFUSED_S
    asked.append(earlier.tasks_write)
    told.append(earlier.refused())
    asked.append(earlier.tasks_write)
    earlier.wrote()
    asked.append(earlier.tasks_write)
    told.append(earlier.refused())
    assert asked == [True, False, True, False, True]
    assert told == [True, False, True], "once, until they have written"


def test_only_failures_of_file_systems_are_refusals() -> None:
    for name in ("FileSystemError", "UnavailableError"):
        assert refusal(Exception(WORKER.format(name))).startswith("hdfs://nn/lake/t: WebHDFS does not answer")
    assert refusal(Exception(WORKER.replace("file_systems.file_system.{}", "archive.errors.ArchiveError"))) == ""
