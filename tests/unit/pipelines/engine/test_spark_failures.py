"""What is said when Spark does not start, fails, or meets a checkpoint of something else."""

from __future__ import annotations

from pathlib import Path

from headwater.pipelines.spark import session
from headwater.pipelines.spark.session import start_failure
from headwater.pipelines.spark.spark_errors import first_line

GATEWAY = RuntimeError("[JAVA_GATEWAY_EXITED] Java gateway process exited")


def test_an_earlier_runs_failure_in_the_log_is_not_told_as_this_ones(tmp_path: Path) -> None:
    log = tmp_path / "spark.log"
    earlier = (
        'Exception in thread "main" java.lang.RuntimeException: [unresolved dependency: io.delta#delta: not found]\n'
    )
    log.write_text(earlier)
    assert "Delta jars cannot be fetched" in start_failure(str(log), 0, GATEWAY)
    log.write_text(earlier + 'Exception in thread "main" org.apache.spark.SparkException: Master must be local\n')
    assert start_failure(str(log), len(earlier), GATEWAY) == "Master must be local"
    assert start_failure(str(log), log.stat().st_size, GATEWAY).startswith("[JAVA_GATEWAY_EXITED]")


def test_a_java_home_without_java_is_named(tmp_path: Path) -> None:
    log = tmp_path / "spark.log"
    log.write_text("spark-class: line 71: /nonexistent/bin/java: No such file or directory\nCMD: bad array subscript\n")
    assert "/nonexistent/bin/java: No such file" in start_failure(str(log), 0, GATEWAY)


def test_a_log_longer_than_what_is_searched_is_read_from_its_end(tmp_path: Path) -> None:
    log = tmp_path / "spark.log"
    log.write_text("x\n" * session.LOG_BYTES_MAX + 'Exception in thread "main" a.B: the reason\n')
    assert start_failure(str(log), 0, GATEWAY) == "the reason"


class FakeStreamingQueryException(Exception):
    """Looks like Spark's: its text is the query's identity, its cause is what happened."""

    def __init__(self, text: str, cause: Exception) -> None:
        super().__init__(text)
        self._cause = cause


def test_a_failed_query_is_told_by_its_cause_not_by_its_identifier() -> None:
    cause = RuntimeError(
        "[PYTHON_STREAMING_DATA_SOURCE_RUNTIME_ERROR] failed: Traceback (most recent call last):\n"
        '  File "x.py", line 1\npipelines.datasource.errors.DataLossError: t-0 is gone\n'
    )
    assert first_line(FakeStreamingQueryException("Identifier: p.s [id = 1]", cause)) == "t-0 is gone"


def test_of_a_file_that_cannot_be_read_the_innermost_cause_is_told() -> None:
    text = (
        "An error occurred while calling o1.collectToPython.\n"
        ": org.apache.spark.SparkException: [FAILED_READ_FILE.NO_HINT] Encountered error in file:/b.csv.\n"
        "\tat org.apache.spark.X.y(X.scala:1)\n"
        "Caused by: java.lang.RuntimeException: outer\n"
        "Caused by: java.lang.IllegalArgumentException: CSV header does not conform to the schema.\n"
        " Header: name, id\n"
    )
    assert first_line(ValueError(text)) == "CSV header does not conform to the schema."
    other = text.replace("FAILED_READ_FILE", "DIVIDE_BY_ZERO")
    assert "Encountered error" in first_line(ValueError(other))
