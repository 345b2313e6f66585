"""`headwater dead-letters` and `pipeline replay` on a real broker, with letters and checkpoints made by the test."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from headwater.cli.main import main

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

SOURCE_PARTITIONS = 3
Headers = list[tuple[str, str | bytes | None]]


class Letters:
    """A topic and its dead letters, of several transactions, some of them aborted."""

    def __init__(self, topics: Any, capsys: pytest.CaptureFixture[str], admin: AdminClient) -> None:
        from confluent_kafka.admin import NewTopic

        self.topic = f"{topics.prefix}.orders"
        self.letters = f"{self.topic}.dead_letters"
        made = admin.create_topics([NewTopic(self.topic, SOURCE_PARTITIONS, 1), NewTopic(self.letters, 1, 1)])
        for future in made.values():
            future.result(30)
        self.topics = topics
        self._capsys = capsys
        self._producer = Producer({"bootstrap.servers": topics.servers, "transactional.id": topics.prefix})
        self._producer.init_transactions(30)

    def write(self, values: Sequence[bytes], error: str = "it is broken", *, commit: bool = True, **said: str) -> None:
        """Write letters as a stage does: each the record at an offset of its number in partition 1."""
        self.write_each([(value, error) for value in values], commit=commit, **said)

    def write_each(self, values: Sequence[tuple[bytes, str]], *, commit: bool = True, **said: str) -> None:
        """The same, each with an error of its own."""
        self._producer.begin_transaction()
        for value, error in values:
            own: Headers = [("trace", b"1"), ("trace", b"2")]
            place = {"topic": self.topic, "partition": "1", "offset": str(int(value))}
            headers = {"error": error, "pipeline": "shop", "stage": "clean", **place, **said}
            more: Headers = [(f"headwater.{name}", text.encode()) for name, text in headers.items() if text]
            self._producer.produce(self.letters, value, b"key", headers=own + more)
        assert self._producer.flush(30) == 0
        if commit:
            self._producer.commit_transaction(30)
        else:
            self._producer.abort_transaction(30)

    def command(self, verb: str, *more: str, code: int = 0) -> tuple[str, str]:
        self._capsys.readouterr()
        assert main(["dead-letters", verb, *more, "-b", self.topics.servers]) == code
        captured = self._capsys.readouterr()
        return captured.out, captured.err

    def back(self) -> list[bytes]:
        """The values that are in the source topic."""
        return [message.value for message in self.topics.read(self.topic)]


@pytest.fixture
def letters(topics: Any, capsys: pytest.CaptureFixture[str], admin: AdminClient) -> Letters:
    return Letters(topics, capsys, admin)


def test_only_committed_letters_are_shown_by_topic_by_name_of_the_letters_and_by_pipeline(letters: Letters) -> None:
    letters.write([b"1", b"2"])
    letters.write([b"3"], commit=False)
    letters.write([b"4"], error="too late", pipeline="other")
    for named in (letters.topic, letters.letters):
        found = json.loads(letters.command("show", named, "-o", "json")[0])
        assert [each["value"] for each in found] == ["1", "2", "4"]
    out, _ = letters.command("show", letters.topic, "--error", "TOO late", "-o", "jsonl")
    [found] = [json.loads(line) for line in out.splitlines()]
    assert found["source"] == {"topic": letters.topic, "partition": 1, "offset": 4}
    assert found["headers"] == [{"name": "trace", "value": "1"}, {"name": "trace", "value": "2"}]
    text, said = letters.command("show", letters.topic, "--limit", "1")
    assert text.startswith(f"{letters.letters}-0 offset 0, ")
    assert "there are more than 1" in said
    _, said = letters.command("show", letters.topic, "--since", "2099-01-01T00:00:00Z")
    assert "no dead letters in" in said
    _, said = letters.command("show", letters.topic, "--since", "yesterday", code=2)
    assert "is not a timestamp" in said


def test_a_letter_is_written_back_once_whatever_filters_choose(letters: Letters) -> None:
    letters.write([b"1", b"2", b"3"])
    letters.write([b"4"], commit=False)
    letters.write([b"5", b"6"], error="too late")
    letters.write([b"7"])
    assert (
        f"{letters.topic}: 2 records would be written"
        in letters.command("replay", letters.topic, "--error", "late", "--dry-run")[1]
    )
    assert letters.back() == []
    letters.command("replay", letters.topic, "--error", "late")
    assert letters.back() == [b"5", b"6"]
    letters.command("replay", letters.topic, "--error", "late")
    assert letters.back() == [b"5", b"6"]
    letters.command("replay", letters.topic)
    assert sorted(letters.back()) == [b"1", b"2", b"3", b"5", b"6", b"7"]
    letters.write([b"8"])
    letters.command("replay", letters.topic)
    letters.command("replay", letters.topic)
    assert sorted(letters.back()) == [b"1", b"2", b"3", b"5", b"6", b"7", b"8"]
    records = letters.topics.read(letters.topic)
    assert {message.partition for message in records} == {1}, "the partition that they came from"
    assert all(message.headers == {"trace": "2", "headwater.replayed": "1"} for message in records)
    assert {message.key for message in records} == {b"key"}


def test_a_record_that_two_stages_refused_is_written_back_once(letters: Letters) -> None:
    letters.write([b"1", b"2"])
    letters.write([b"1"], stage="sums")
    letters.command("replay", letters.topic)
    assert letters.back() == [b"1", b"2"]


def test_a_row_without_its_record_stays_unless_it_is_told_where_to_go(letters: Letters) -> None:
    letters.write([b"1"], topic="")
    _, said = letters.command("replay", letters.topic)
    assert "1 dead letters have no source topic" in said
    assert "nothing to write back" in said
    letters.command("replay", letters.topic, "--to", letters.topic)
    assert letters.back() == [b"1"]
    _, said = letters.command("replay", letters.topic, "--to", "no.such.topic", code=2)
    assert "there is no topic 'no.such.topic'" in said


def test_what_has_no_dead_letters_says_so(letters: Letters) -> None:
    _, said = letters.command("show", f"{letters.topic}.none.dead_letters", code=2)
    assert "has no dead letters" in said


def test_gaps_that_cannot_be_remembered_end_a_replay_before_they_are_written(letters: Letters) -> None:
    """Every second of many letters is meant: more ranges than an offset's metadata holds."""
    for number in range(0, 2400, 400):
        letters.write_each([(str(n).encode(), "odd" if n % 2 else "even") for n in range(number, number + 400)])
    _, said = letters.command("replay", letters.topic, "--error", "odd", code=1)
    assert "no longer fit the metadata of the group" in said
    written = letters.back()
    assert written == [str(n).encode() for n in range(1, 2 * len(written), 2)]
    assert f"{len(written)} records are written back" in said
    letters.command("replay", letters.topic)
    assert sorted(int(value) for value in letters.back()) == list(range(2400))


LINES = """\
pipeline: "{name}"
stages:
  - name: copy
    from: {{topic: "{topic}"}}
    to: [{{delta: lake/copy}}]
"""


def test_a_replay_is_planned_from_what_the_broker_and_the_group_know(
    letters: Letters, admin: AdminClient, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = letters.topics.prefix
    letters.topics.produce(letters.topic, [(str(n).encode(), b"x") for n in range(60)])
    file, state = tmp_path / "copy.yaml", tmp_path / "state"
    file.write_text(LINES.format(name=name, topic=letters.topic))
    log = 'v1\n{"batchWatermarkMs":0,"conf":{}}\n' + json.dumps({letters.topic: {"0": 3, "1": 3, "2": 3}})
    for part, text in (("offsets", log), ("commits", "v1\n{}")):
        folder = state / name / "copy" / "checkpoint" / part
        folder.mkdir(parents=True)
        (folder / "0").write_text(text)
    where = ["-b", letters.topics.servers, "--state", str(state)]

    def run(verb: str, *more: str, code: int = 0) -> tuple[str, str]:
        capsys.readouterr()
        assert main(["pipeline", verb, str(file), *where, *more]) == code
        captured = capsys.readouterr()
        return captured.out, captured.err

    [stage] = json.loads(run("status", "-o", "json")[0])["stages"]
    assert stage["lag"] == {letters.topic: 60 - 9}
    _, said = run("replay", "--from", '{"0": 1}', code=2)
    assert f"written twice: rows of the Delta table {tmp_path / 'lake' / 'copy'}" in said
    run("replay", "--from", '{"0": 1}', "--yes")
    [stage] = json.loads(run("status", "-o", "json")[0])["stages"]
    assert (stage["epoch"], stage["starts_at"]) == (2, {letters.topic: {"0": 1, "1": 3, "2": 3}})
    assert (state / name / "copy" / "checkpoint.1" / "offsets" / "0").read_text() == log

    [done] = admin.delete_records([TopicPartition(letters.topic, 0, 2)]).values()
    done.result(30)
    for place in ('{"0": 1, "1": 0, "2": 0}', "2020-01-01T00:00:00Z"):
        _, said = run("replay", "--from", place, "--yes", code=1)
        assert "the log begins at offset 2" in said
        assert f"{tmp_path / 'lake' / 'copy'} (what stage copy made of it)" in said
    run("replay", "--from", "earliest", "--yes")
    [stage] = json.loads(run("status", "-o", "json")[0])["stages"]
    assert stage["starts_at"] == {letters.topic: {"0": 2, "1": 0, "2": 0}}
    run("replay", "--from", "2099-01-01T00:00:00Z", "--yes")
    _, said = run("replay", "--from", '{"0": 100000}', "--yes", code=2)
    assert "lies beyond" in said
