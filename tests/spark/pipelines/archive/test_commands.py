"""`headwater archive plan`, `status`, `maintain` and `verify` as commands: one bad topic stops no other."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from headwater.cli.main import main
from headwater.pipelines.archive import maintenance
from headwater.pipelines.archive.archive_file import parse_archive
from headwater.pipelines.archive.topic_archive import TopicArchive
from headwater.pipelines.file_systems import opening
from headwater.pipelines.file_systems.local import LocalFiles
from headwater.pipelines.locks.broker_lock import LockHeldError
from headwater.pipelines.seam.table_offsets import table_offsets
from tests.spark.pipelines.archive.conftest import Archives

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow

RAW = 'archive: {root: lake, topics: {"@t": , "@u": }}\n'
TOPICS = ("t", "bad", "gone", "u")


class Commands:
    """Runs commands in this process, with this process's Spark; an `@` is the prefix of this test's topics."""

    def __init__(self, archives: Archives, capsys: pytest.CaptureFixture[str]) -> None:
        self.archives = archives
        self._capsys = capsys
        self.declare()

    def declare(self, **fields: str) -> None:
        """Write the file of archives, with fields of some topics."""
        declared = ", ".join(f'"{self.name(topic)}": {fields.get(topic, "")}' for topic in TOPICS)
        text = f"archive: {{root: lake, topics: {{{declared}}}}}"
        self._file = self.archives.lab.write("archive.yaml", text)

    def name(self, topic: str) -> str:
        return f"{self.archives.lab.prefix}{topic}"

    def __call__(self, verb: str, *options: str, of: Sequence[str] = TOPICS) -> tuple[int, str, str]:
        """The exit code, and the lines of both streams, in which `lake` and the prefix are left out."""
        # By name: other tests have enabled archives of the same broker.
        topics = [self.name(topic) for topic in of]
        where = ["--bootstrap-servers", self.archives.lab.servers]
        code = main(["archive", verb, str(self._file), *topics, *where, *options])
        said = self._capsys.readouterr()
        out, err = (
            each.replace(f"{self.archives.lab.folder}/", "").replace(self.archives.lab.prefix, "") for each in said
        )
        assert "Traceback" not in out + err
        return code, out, err


@pytest.fixture
def commands(archives: Archives, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Commands:
    @contextmanager
    def session(_name: str, _conf: Any) -> Iterator[Callable[[], SparkSession]]:
        yield archives.lab.spark.newSession

    for verb in ("maintain", "verify"):
        monkeypatch.setattr(f"headwater.cli.archive.{verb}.driver_session", session)
    for topic in ("@t", "@u", "@bad"):
        archives.lab.produce(topic, [b"a", b"b"])
    archives.caught_up(RAW)
    archives.lab.produce("@t", [b"c"])
    archives.lab.spark.range(1).write.format("delta").save(str(archives.path("@bad")))
    return Commands(archives, capsys)


FOREIGN = "bad: the table lake/bad was not made by an archive"


def test_each_topic_has_its_line_and_a_bad_one_stops_no_other(
    commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, out, err = commands("plan")
    assert (code, err) == (2, "")
    first, second, third, fourth = out.splitlines()
    assert (first, fourth) == (
        "t: adds 1 offsets to lake/t (version 1)",
        "u: adds 0 offsets to lake/u (version 1)",
    )
    assert second.startswith(FOREIGN)
    assert third.startswith("gone: there is no topic 'gone'")

    retention = "delta.setTransactionRetentionDuration"
    sql, table = commands.archives.lab.spark.sql, f"delta.`{commands.archives.path('@u')}`"
    sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('{retention}' = 'interval 1 day')")
    commands.declare(t="{mode: upsert}")
    code, out, err = commands("plan")
    assert (code, err) == (2, "")
    assert out.splitlines()[0] == (
        "t: the table lake/t has the mode append, which it keeps, and not upsert: name another table, or leave out "
        "`mode`"
    )
    assert out.splitlines()[3] == (
        f"u: the table lake/u has the property {retention} = interval 1 day: it would forget its offsets; unset it"
    )
    commands.declare()
    sql(f"ALTER TABLE {table} UNSET TBLPROPERTIES ('{retention}')")

    code, out, err = commands("status")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].startswith("t: lake/t, append, version 1, committed ")
    assert lines[0].endswith(" ago, 1 offsets behind")
    assert lines[1] == "  0: 2 of 0 to 3"
    assert sum(FOREIGN.removeprefix("bad: ") in line for line in lines) == 1

    for verb, wanted in (("plan", 2), ("status", 0)):
        code, out, err = commands(verb, "-o", "json")
        found = json.loads(out)
        assert (code, [each["topic"] for each in found]) == (wanted, list(TOPICS))
        assert [bool(each["problem"]) for each in found] == [False, True, True, False]
        assert found[0]["partitions"] == [{"partition": 0, "archived": 2, "log_start": 0, "log_end": 3}]

    code, out, err = commands("verify")
    assert code == 1
    first, second, third, fourth = out.splitlines()
    assert first == "t: lake/t, version 1: as it should be: 2 rows, 2 offsets of the log"
    assert second.startswith(FOREIGN)
    assert third.startswith("gone: there is no topic 'gone'")
    assert fourth.startswith("u: lake/u, version 3: as it should be")
    assert err == "headwater: archive verify: 2 of 4 tables could not be compared\n"
    code, out, err = commands("verify", "-o", "json", of=("bad", "u"))
    found = json.loads(out)
    assert [(each["version"], len(each["problems"])) for each in found] == [(-1, 1), (3, 0)]
    assert code == 1

    code, out, err = commands("maintain")
    assert code == 1
    assert out.splitlines() == [
        "t: lake/t is compacted and vacuumed",
        "gone: no table at lake/gone",
        "u: lake/u is compacted and vacuumed",
    ]
    first, last = err.splitlines()
    assert FOREIGN in first
    assert last == "headwater: archive maintain: 1 of 4 tables were not maintained"

    compact = maintenance.compact

    def failing(spark: SparkSession, table: str, **more: Any) -> None:
        if table.endswith("t"):
            spark._jvm.java.io.FileInputStream("/no such file")  # type: ignore[union-attr]
        if table.endswith("u"):
            raise RuntimeError("files of [2] rows would become files of [1]")
        compact(spark, table, **more)

    monkeypatch.setattr(maintenance, "compact", failing)
    code, out, err = commands("maintain")
    assert (code, out) == (1, "gone: no table at lake/gone\n")
    first, _, third, last = err.splitlines()
    assert "t: java.io.FileNotFoundException: /no such file" in first
    assert third.endswith("u: unexpected RuntimeError: files of [2] rows would become files of [1]")
    assert last == "headwater: archive maintain: 3 of 4 tables were not maintained"


def test_where_a_rename_may_replace_maintenance_waits_for_no_archiver_and_keeps_it_out(
    commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab, files = commands.archives.lab, LocalFiles(is_atomic=False)
    text = RAW.replace("@", lab.prefix)
    [spec, _], _ = parse_archive(text, "archive.yaml", {}, str(lab.folder), {}, lambda _: "")
    archiver = TopicArchive(spec, lab.servers, lambda _: files)
    offsets = table_offsets(spec.table)
    assert offsets is not None
    with maintenance.sole_driver(spec.topic, offsets.topic_id, lab.servers, files) as confirm:
        confirm()
        with pytest.raises(LockHeldError, match="is held by maintenance of"):
            archiver.open()
    archiver.open()
    try:
        monkeypatch.setattr(opening, "file_system", lambda *_: files)
        code, out, err = commands("maintain")
        assert code == 1
        assert out.splitlines() == ["gone: no table at lake/gone", "u: lake/u is compacted and vacuumed"]
        assert "t: the archive of t is held by archive of t" in err.splitlines()[0]
        with maintenance.sole_driver(spec.topic, offsets.topic_id, lab.servers, LocalFiles()) as confirm:
            confirm()
    finally:
        archiver.close()
