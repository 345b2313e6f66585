"""The prompt on a pipe: several lines, history, completion, Ctrl-C."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document
from prompt_toolkit.history import InMemoryHistory
from prompt_toolkit.input import PipeInput, create_pipe_input
from prompt_toolkit.output import DummyOutput

from headwater.cli.sql.completion import SqlCompleter
from headwater.cli.sql.history import HISTORY_BYTES_MAX, history_at, history_path
from headwater.cli.sql.prompt import Prompt
from headwater.pipelines.sql.relations import Known
from headwater.pipelines.sql.topic_names import TopicNames

UP, ENTER, CTRL_C, CTRL_D, TAB = "\x1b[A", "\r", "\x03", "\x04", "\t"


class Relations:
    """Topics and their columns, without Spark."""

    def __init__(self) -> None:
        self.topics = TopicNames(lambda: ["flights", "flights.dead_letters", "__consumer_offsets"])
        self.known = Known(tables={"archive": "/lake/archive"})

    def columns(self, name: tuple[str, ...]) -> tuple[str, ...]:
        return ("_offset", "carrier", "dep delay") if name == ("flights",) else ()


@pytest.fixture
def completer() -> SqlCompleter:
    relations: Any = Relations()
    return SqlCompleter(relations)


@pytest.fixture
def keys() -> Iterator[PipeInput]:
    with create_pipe_input() as source:
        yield source


def prompt(keys: PipeInput, completer: SqlCompleter) -> Prompt:
    return Prompt(InMemoryHistory(), completer, keys, DummyOutput())


def test_an_input_ends_with_its_semicolon_and_not_with_its_line(keys: PipeInput, completer: SqlCompleter) -> None:
    keys.send_text(f"SELECT ';{ENTER}';{ENTER}")
    assert prompt(keys, completer).read() == "SELECT ';\n';"


def test_the_history_gives_inputs_back(keys: PipeInput, completer: SqlCompleter) -> None:
    of = prompt(keys, completer)
    keys.send_text(f"SELECT 1,{ENTER}2;{ENTER}")
    assert of.read() == "SELECT 1,\n2;"
    keys.send_text(f"{UP}{ENTER}")
    assert of.read() == "SELECT 1,\n2;"


def test_ctrl_c_drops_the_input_and_ctrl_d_ends_it(keys: PipeInput, completer: SqlCompleter) -> None:
    of = prompt(keys, completer)
    keys.send_text(f"SELECT 1{CTRL_C}")
    with pytest.raises(KeyboardInterrupt):
        of.read()
    keys.send_text(CTRL_D)
    with pytest.raises(EOFError):
        of.read()


def completions(completer: SqlCompleter, text: str) -> Sequence[str]:
    at = text.index("|")
    document = Document(text.replace("|", ""), at)
    return [each.text for each in completer.get_completions(document, CompleteEvent())]


def test_relations_follow_from_and_columns_are_those_of_the_statement(completer: SqlCompleter) -> None:
    assert completions(completer, "SELECT * FROM |") == ["flights", "`flights.dead_letters`", "archive", "log", "lake"]
    assert completions(completer, "SELECT * FROM log.fl|") == ["flights", "`flights.dead_letters`"]
    assert completions(completer, "SELECT * FROM lake.|") == ["archive"]
    assert completions(completer, "SELECT ca| FROM flights") == [
        "carrier", "CASE", "CAST", *[name for name in completions(completer, "SELECT ca| FROM x") if "(" in name],
    ]  # fmt: skip
    assert completions(completer, "SELECT flights.| FROM flights") == ["_offset", "carrier", "`dep delay`"]
    assert completions(completer, "SELECT f.dep| FROM flights f") == ["`dep delay`"]
    assert "count(" in completions(completer, "SELECT coun|")
    assert completions(completer, "sel|") == ["SELECT"]
    assert "`flights.dead_letters`" in completions(completer, "SELECT * FROM `flights.|")


def test_a_broker_that_does_not_answer_costs_the_topics_only() -> None:
    def fails() -> list[str]:
        raise OSError("no broker answers")

    relations: Any = SimpleNamespace(topics=TopicNames(fails), known=Known(tables={"archive": "/a"}))
    assert completions(SqlCompleter(relations), "TABLE |") == ["archive", "log", "lake"]


def test_the_history_is_the_users_alone_and_has_a_limit(tmp_path: Path) -> None:
    path = Path(history_path({"XDG_STATE_HOME": str(tmp_path / "state")}))
    history, why_not = history_at(str(path))
    assert why_not == ""
    history.append_string("SELECT 1;")
    for option in ("password", "sasl.jaas.config", "apikey", "passphrase", "fs.s3a.access.key", "Credential", "pwd"):
        history.append_string(f"CREATE TABLE t USING jdbc OPTIONS (`{option}` 'hidden');")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert "hidden" not in path.read_text()
    history.append_string("SELECT passengers FROM flights;")
    assert "passengers" in path.read_text()
    path.write_text(path.read_text() * (HISTORY_BYTES_MAX // 20))
    os.chmod(path, 0o644)
    again, _ = history_at(str(path))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert 0 < path.stat().st_size <= HISTORY_BYTES_MAX // 2
    assert set(again.load_history_strings()) == {"SELECT 1;", "SELECT passengers FROM flights;"}


def test_a_history_that_cannot_be_kept_is_said_and_kept_for_the_session(tmp_path: Path) -> None:
    (tmp_path / "headwater").write_text("a file")
    history, why_not = history_at(str(tmp_path / "headwater" / "sql_history"))
    assert isinstance(history, InMemoryHistory)
    assert "the history ends with the shell" in why_not


def test_the_prompt_completes_by_tab(keys: PipeInput, completer: SqlCompleter) -> None:
    of = prompt(keys, completer)
    found: list[str] = []
    reader = threading.Thread(target=lambda: found.append(of.read()), daemon=True)
    keys.send_text(f"SELECT * FROM arc{TAB}")
    reader.start()
    # Completion runs in a thread: what is typed while it runs would end it.
    buffer = of._session.default_buffer
    for _ in range(200):
        if buffer.text.endswith("archive"):
            break
        reader.join(0.05)
    keys.send_text(f";{ENTER}")
    reader.join(30)
    assert found == ["SELECT * FROM archive;"]
