"""What `headwater publish` refuses before Spark starts, and what it reports."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest

from headwater.cli.main import main
from headwater.cli.shell.termination import EXIT_TERMINATED
from headwater.cli.verbs.publish import report
from headwater.pipelines.file_systems.file_system import UnavailableError
from headwater.pipelines.publishing.contents import FileContents, Files, VersionDifference
from headwater.pipelines.publishing.publisher import Published
from headwater.pipelines.publishing.request import PublishRequest

FILES = Files((FileContents("a.json", 10, "aa"),))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["PATH", "-t", "t"], "name the column of the key by --key, or say --no-key"),
        (["PATH", "-t", "t", "-k", "id", "--no-key"], "name the column of the key by --key, or say --no-key"),
        (["PATH", "-t", "t", "-k", "id", "--from-version", "1"], "--from-version and --to-version go together"),
        (["PATH", "-t", "t", "-k", "id", "--from-version", "2", "--to-version", "1"], "is later than --to-version"),
        (["PATH@3", "-t", "t", "-k", "id", "--version", "4"], "the version is given twice"),
        (["PATH", "-t", "t", "-k", "id", "--id", "a b"], "an id has 1 to 200 letters"),
        (["PATH", "-t", "a/b", "-k", "id"], "not a topic name"),
        (["PATH/nowhere", "-t", "t", "-k", "id"], "there is no such file or folder"),
        (["PATH/text.txt", "-t", "t", "-k", "id"], "name it by --input-format"),
        (["PATH", "-t", "t", "-k", "id", "-H", "name"], "is not of the form name=value"),
        (["PATH", "-t", "t", "-k", "id", "--format", "csv"], "csv needs a schema"),
        (["ftp://host/in", "-t", "t", "-k", "id"], "name its format by --input-format"),
        (["PATH", "-k", "id"], "Missing option '-t' / '--topic'"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.json").write_text("{}\n")
    (tmp_path / "text.txt").write_text("")
    given = [
        argument.replace("PATH", str(tmp_path / "a.json" if argument == "PATH" else tmp_path)) for argument in arguments
    ]
    assert main(["publish", *given]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
    assert len(err.splitlines()) == 1


def published(**more: Any) -> Published:
    given: dict[str, Any] = {
        "name": "5d0c",
        "topic": "t",
        "contents": FILES,
        "rows": 10,
        "transactions": 1,
        "written": 10,
    }
    return Published(**(given | more))


@pytest.mark.parametrize(
    ("result", "line"),
    [
        (published(), "10 rows of /in (1 file) to t: 1 transaction, 2.0 s, 5/s"),
        (
            published(transactions=3, written=4),
            "4 rows of /in (1 file) to t, 6 were there already: 3 transactions, 2.0 s, 2/s",
        ),
        (published(written=0), "/in (1 file) is in t already: 10 rows, 1 transaction; nothing was written"),
        (
            published(contents=VersionDifference("i", 1, 2, "a", "b"), by_feed=True),
            "10 rows of /in (versions 1 to 2, by the change data feed) to t: 1 transaction, 2.0 s, 5/s",
        ),
    ],
)
def test_the_summary_says_what_was_written(result: Published, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    report(PublishRequest("/in", "t", "id"), result, 2.0, "text")
    assert capsys.readouterr().out == f"{line}\nid 5d0c\n"


def test_the_summary_is_json_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    report(PublishRequest("/in", "t", "id"), published(written=0), 2.0, "json")
    told = json.loads(capsys.readouterr().out)
    assert told["was_there"] is True
    assert (told["rows"], told["written"], told["transactions"], told["id"]) == (10, 0, 1, "5d0c")


def test_a_file_system_that_does_not_answer_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def entry(path: str) -> NoReturn:
        raise UnavailableError(f"{path}: the NameNode at nn:9870 does not answer")

    monkeypatch.setattr(
        "headwater.pipelines.publishing.opened_source.accessible_files", lambda path: SimpleNamespace(entry=entry)
    )
    assert main(["publish", "hdfs://nn/in", "-t", "t", "-k", "id"]) == 1
    out, err = capsys.readouterr()
    assert (out, err) == ("", "headwater: publish: hdfs://nn/in: the NameNode at nn:9870 does not answer\n")


@pytest.fixture
def sigterm() -> Iterator[list[int]]:
    """Signals that the command has left to their default, which would end the tests."""
    left: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: left.append(number))
    yield left
    signal.signal(signal.SIGTERM, before)


def test_sigterm_is_raised_where_an_open_transaction_is_aborted(
    sigterm: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark's session and the publish itself are replaced: what matters is that the exception passes through them."""
    (tmp_path / "a.json").write_text("{}\n")
    done = []

    def publish_source(*_arguments: object) -> NoReturn:
        try:
            signal.raise_signal(signal.SIGTERM)
        except BaseException:
            done.append("aborted")
            raise
        raise AssertionError("the signal passed by")

    monkeypatch.setattr("headwater.cli.shell.checks.require_java", lambda: None)
    monkeypatch.setattr("headwater.pipelines.spark.session.open_session", lambda *_arguments: None)
    monkeypatch.setattr("headwater.pipelines.spark.session.close_session", lambda: done.append("closed"))
    monkeypatch.setattr("headwater.pipelines.publishing.publisher.publish", publish_source)
    code = main(["publish", str(tmp_path / "a.json"), "-t", "t", "-k", "id"])
    assert (code, done, sigterm) == (EXIT_TERMINATED, ["aborted", "closed"], [])
