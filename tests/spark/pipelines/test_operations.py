"""The life of a pipeline on a real broker and a real Spark: changed, reset, replayed, mended."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from headwater.cli.main import main
from headwater.pipelines.errors import PipelineError
from headwater.pipelines.sources.inputs import StageInputs
from headwater.pipelines.starters import TEMPLATES, fill

pytestmark = pytest.mark.slow

SHOPS = 3


class Shop:
    """The pipeline that `init` writes, under a name of the test's own, and the commands about it."""

    def __init__(self, lab: Any, capsys: pytest.CaptureFixture[str]) -> None:
        self.name = lab.prefix.rstrip(".")
        self.text = ""
        for path, text in fill(TEMPLATES["orders"], self.name).files.items():
            lab.write(path, text)
            self.text = text if path == "pipeline.yaml" else self.text
        self.orders, self.clean = f"{self.name}_orders", f"{self.name}_clean"
        self.letters = f"{self.orders}.dead_letters"
        self.table: Path = lab.folder / "lake" / "orders"
        self.stages: Path = lab.folder / "state" / self.name
        self.lab = lab
        self._capsys = capsys

    def change(self, old: str, new: str) -> None:
        assert old in self.text
        self.text = self.text.replace(old, new)

    def run(self, *stages: str, reset: tuple[str, ...] = (), told: list[str] | None = None) -> None:
        more = {} if told is None else {"on_event": told.append}
        self.lab.run(self.text, stages=stages, reset=reset, **more)

    def command(self, *arguments: str, code: int = 0) -> tuple[str, str]:
        """What a command prints, both streams."""
        self._capsys.readouterr()
        where = ["-b", self.lab.servers] if arguments[1] not in ("plan", "stop") else []
        assert main([*arguments, *where]) == code
        captured = self._capsys.readouterr()
        assert "Traceback" not in captured.err
        return captured.out, captured.err

    def pipeline(self, verb: str, *more: str, code: int = 0) -> tuple[str, str]:
        file = self.lab.write("pipeline.yaml", self.text)
        return self.command("pipeline", verb, str(file), "--state", str(self.lab.folder / "state"), *more, code=code)

    def status(self) -> dict[str, Any]:
        return {each["stage"]: each for each in json.loads(self.pipeline("status", "-o", "json")[0])["stages"]}

    def produce(self, first: int, last: int, amount: float = 1.0) -> None:
        """Orders, a second apart in event time, of as many shops as there are partitions, one in each."""
        for shop in range(SHOPS):
            values: list[Any] = []
            for number in range(first, last + 1):
                if number % SHOPS == shop:
                    at = f"2026-01-01T00:{number // 60:02}:{number % 60:02}Z"
                    value = {"id": number, "shop": f" S{shop}", "amount": amount, "at": at}
                    values.append(("k", value, [("trace", str(number).encode()), ("trace", b"again")]))
            self.lab.produce(self.orders, values, partitions=SHOPS, partition=shop)


@pytest.fixture
def shop(lab: Any, capsys: pytest.CaptureFixture[str]) -> Shop:
    return Shop(lab, capsys)


def written(lab: Any, table: Path) -> Counter[tuple[int, int]]:
    """How often each record's row stands in a table."""
    rows = lab.spark.read.format("delta").load(str(table)).select("_partition", "_offset").collect()
    return Counter((row[0], row[1]) for row in rows)


def test_letters_are_shown_and_written_back_once_and_count_their_rounds(shop: Shop, lab: Any) -> None:
    shop.produce(1, 6)
    shop.produce(7, 8, amount=0)
    shop.run("clean")

    found = json.loads(shop.command("dead-letters", "show", shop.orders, "-o", "json")[0])
    assert [(each["key"], each["expectation"], each["stage"], each["replayed"]) for each in found] == [
        ("k", "paid", "clean", 0)
    ] * 2
    assert sorted(each["source"]["partition"] for each in found) == [1, 2]
    assert {json.dumps(each["headers"]) for each in found} == {
        json.dumps([{"name": "trace", "value": str(number)}, {"name": "trace", "value": "again"}]) for number in (7, 8)
    }
    text, _ = shop.command("dead-letters", "show", str(lab.folder / "pipeline.yaml"), "--error", "PAID is not met")
    assert text.count(f"from     {shop.orders}-") == 2
    none, said = shop.command("dead-letters", "show", shop.name, "--error", "no such thing")
    assert none == ""
    assert "no dead letters in" in said

    _, said = shop.command("dead-letters", "replay", shop.orders, "--dry-run")
    assert f"{shop.orders}: 2 records would be written back" in said
    assert len(lab.read(shop.orders)) == 8

    # With a filter first: what it leaves out is not forgotten.
    _, said = shop.command("dead-letters", "replay", shop.orders, "--since", "2099-01-01T00:00:00Z")
    assert "nothing to write back" in said
    _, said = shop.command("dead-letters", "replay", shop.orders)
    assert f"{shop.orders}: 2 records written back" in said
    _, said = shop.command("dead-letters", "replay", shop.orders)
    assert "nothing to write back" in said
    records = lab.read(shop.orders)
    before = {record.value: record for record in records if "headwater.replayed" not in record.headers}
    replayed = [record for record in records if "headwater.replayed" in record.headers]
    assert (len(before), len(replayed)) == (8, 2)
    for record in replayed:
        came = before[record.value]
        assert (record.key, record.partition) == (came.key, came.partition)
        assert record.headers == came.headers | {"headwater.replayed": b"1"}

    # Nothing was mended: they come back with their round, and may be written elsewhere.
    shop.run("clean")
    found = json.loads(shop.command("dead-letters", "show", shop.letters, "-o", "json")[0])
    assert sorted(each["replayed"] for each in found) == [0, 0, 1, 1]
    lab.produce(f"{shop.name}_mended", [])
    shop.command("dead-letters", "replay", shop.letters, "--to", f"{shop.name}_mended")
    assert [record.headers["headwater.replayed"] for record in lab.read(f"{shop.name}_mended")] == [b"2", b"2"]


def test_records_that_cannot_be_decoded_keep_their_headers_too(shop: Shop, lab: Any) -> None:
    lab.produce(shop.orders, [("k", "{no json", [("a", b"1"), ("headwater.stage", b"old")]), (None, "[]", None)])
    shop.run("clean")
    found = json.loads(shop.command("dead-letters", "show", shop.orders, "-o", "json")[0])
    found.sort(key=lambda each: each["source"]["offset"])  # the one without a key may be in any partition
    assert [(each["value"], each["headers"], each["stage"]) for each in found] == [
        ("{no json", [{"name": "a", "value": "1"}], "clean"),
        ("[]", [], "clean"),
    ]
    assert [each["source"]["offset"] for each in found] == [0, 1]


def test_a_batch_is_read_again_for_headers_only_if_a_record_has_some(
    shop: Shop, lab: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    again = StageInputs.headers_again

    def noted(inputs: StageInputs, plan: Any) -> Any:
        asked.append(plan)
        return again(inputs, plan)

    monkeypatch.setattr(StageInputs, "headers_again", noted)
    unpaid = {"id": 1, "shop": "S", "amount": 0, "at": "2026-01-01T00:00:00Z"}
    lab.produce(shop.orders, [("a", unpaid), ("b", "{no json")])
    shop.run("clean")
    assert asked == []
    lab.produce(shop.orders, [("c", unpaid, [("trace", b"7")]), ("d", "{no json")])
    shop.run("clean")
    assert len(asked) == 1
    found = json.loads(shop.command("dead-letters", "show", shop.orders, "-o", "json")[0])
    assert {each["key"]: each["headers"] for each in found} == {
        "a": [], "b": [], "c": [{"name": "trace", "value": "7"}], "d": []
    }  # fmt: skip


def test_a_change_that_does_not_fit_is_refused_and_a_reset_starts_anew(shop: Shop, lab: Any) -> None:
    shop.produce(1, 120)
    shop.run()
    found = shop.status()
    assert found["clean"]["lag"] == {shop.orders: 0}
    assert (found["clean"]["known_by"], found["clean"]["error"]) == ("checkpoint", None)
    same, _ = shop.pipeline("plan")
    assert "clean: no changes; it continues after micro-batch" in same
    assert "sales: no changes; it continues after micro-batch" in same
    shop.produce(121, 126)
    assert shop.status()["clean"]["lag"] == {shop.orders: 6}

    shop.change("'1 hour'", "'30 minutes'")
    shop.change("that: amount > 0", "that: amount >= 0")
    changes = json.loads(shop.pipeline("plan", "-o", "json")[0])["changes"]
    assert [(each["stage"], each["effect"]) for each in changes] == [("clean", "safe"), ("sales", "needs reset")]
    with pytest.raises(PipelineError) as caught:
        shop.run()
    [problem] = caught.value.problems
    assert problem.field == "stages[1].sql"
    assert "the checkpoint of stage sales does not fit: grouping keys" in problem.message
    assert shop.status()["clean"]["lag"] == {shop.orders: 6}, "nothing was begun"

    told: list[str] = []
    shop.run(reset=("sales",), told=told)
    [line] = [line for line in told if "starts anew" in line]
    assert line.startswith("stage sales starts anew; its checkpoint was moved to")
    assert (shop.stages / "sales" / "checkpoint.1" / "offsets").is_dir()
    found = shop.status()
    assert (found["sales"]["epoch"], found["clean"]["epoch"]) == (2, 1)
    assert found["sales"]["offsets"].keys() == {shop.clean}
    assert set(written(lab, shop.table).values()) == {1}, "the other stage went on"
    assert "sales: no changes;" in shop.pipeline("plan")[0]


def test_a_stage_whose_code_no_longer_keeps_state_is_refused(lab: Any) -> None:
    """The file does not show what a function does."""
    text = 'pipeline: coded\ntopics: {"@in": {value: string}}\nstages:\n  - name: s\n    from: {topic: "@in"}\n'
    text += '    python: {file: code.py, function: f}\n    to: [{topic: "@out"}]\n'
    lab.produce("@in", ["a", "b"])
    lab.write(
        "code.py",
        "def f(r):\n    return r.withWatermark('_timestamp', '1 hour').dropDuplicatesWithinWatermark(['value'])\n",
    )
    lab.run(text)
    lab.write("code.py", "def f(r):\n    return r\n")
    with pytest.raises(PipelineError, match="the checkpoint of stage s does not fit"):
        lab.run(text)
    lab.run(text, reset=("s",))


def test_a_replay_starts_where_it_is_told_and_refuses_what_the_log_has_lost(shop: Shop, lab: Any) -> None:
    """A new checkpoint with an old txnAppId silently drops writes. Each place has its rows twice here."""
    shop.produce(1, 30)
    shop.run("clean")
    place = '{"0": 4, "1": 4}'
    _, said = shop.pipeline("replay", "--from", place, code=2)
    assert f"written twice: records of topic {shop.clean}, which stage sales reads again" in said
    assert f"written twice: rows of the Delta table {shop.table}" in said
    assert "give --yes" in said
    assert not (shop.stages / "clean" / "checkpoint.1").exists()
    shop.pipeline("replay", "--from", place, "--yes", "--dry-run")
    assert not (shop.stages / "clean" / "checkpoint.1").exists()
    shop.pipeline("replay", "--from", place, "--yes")
    assert shop.status()["clean"]["starts_at"] == {shop.orders: {"0": 4, "1": 4, "2": 10}}
    shop.run("clean")
    rows = written(lab, shop.table)
    assert {place: count for place, count in rows.items() if count > 1} == {
        (partition, offset): 2 for partition in (0, 1) for offset in range(4, 10)
    }
    assert len(lab.read(shop.clean)) == 30 + 12
    assert shop.status()["clean"]["starts_at"] is None

    admin = AdminClient({"bootstrap.servers": lab.servers})
    [done] = admin.delete_records([TopicPartition(shop.orders, 0, 5)]).values()
    done.result(30)
    for where in (place, "2020-01-01T00:00:00Z"):
        _, said = shop.pipeline("replay", "--from", where, "--yes", code=1)
        assert f"{shop.orders}-0:" in said
        assert "the log begins at offset 5" in said
        assert f"{shop.table} (what stage clean made of it)" in said
    assert shop.status()["clean"]["epoch"] == 2, "what was refused has touched nothing"


def test_a_batch_that_a_crash_left_committed_is_not_replayed_where_nothing_was_asked_for(shop: Shop, lab: Any) -> None:
    """The checkpoint does not know of it, the consumer group does."""
    shop.produce(1, 30)
    shop.run("clean")
    lab.repeat_last_batch(shop.name, "clean")
    _, said = shop.pipeline("replay", "--from", '{"0": 9}', "--yes")
    assert "begun and not ended" in said
    shop.run("clean")
    assert len(lab.read(shop.clean)) == 30 + 1
    assert {place for place, count in written(lab, shop.table).items() if count > 1} == {(0, 9)}
