"""Publishing files, versions of tables and differences into topics, read back by a read_committed consumer."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fastavro
import pyarrow as pa
import pyarrow.orc as orc
import pyarrow.parquet as pq
import pytest
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext

from headwater.api.topic_model import TopicRequest
from headwater.pipelines.publishing.errors import PublishFailed, PublishRefused
from headwater.pipelines.publishing.opened_source import accessible_files, named_source
from headwater.pipelines.publishing.publisher import OnStep, Published, no_step, publish, source_shown
from headwater.pipelines.publishing.request import PublishRequest
from headwater.pipelines.publishing.sending_progress import SendingProgress
from headwater.pipelines.publishing.topic_declaration import declared_topic
from headwater.pipelines.spark.session_settings import settings_for_a_job

if TYPE_CHECKING:
    from confluent_kafka.schema_registry import SchemaRegistryClient
    from pyspark.sql import SparkSession

    from tests.spark.pipelines.conftest import Lab, Seen
    from tests.spark.registry_process import Registry

pytestmark = pytest.mark.slow

ROWS = 600


class Quiet:
    """Watches a publish, and shows nothing."""

    def __init__(self) -> None:
        self.phases: list[str] = []
        self.parts: list[tuple[int, int, int]] = []

    def reading(self, size: int) -> None:
        assert size > 0

    def phase(self, name: str) -> None:
        self.phases.append(name)

    @contextlib.contextmanager
    def sending(self, rows: int, part: int, parts: int) -> Iterator[None]:
        self.parts.append((rows, part, parts))
        yield


class Publishing:
    """Publishes into topics of the lab."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.folder = lab.folder

    def topic(self, name: str, **configs: str) -> str:
        full = f"{self.lab.prefix}{name}"
        self.lab.admin.create_topic(TopicRequest(full, partitions_count=2, configs=configs))
        return full

    def __call__(
        self,
        path: Path | str,
        topic: str,
        on_step: OnStep = no_step,
        declared: dict[str, Any] | None = None,
        registry: str | None = None,
        **more: Any,
    ) -> Published:
        request = PublishRequest(path=str(path), topic=topic, **({"key": "id"} | more))
        request = named_source(request, accessible_files(str(path)))
        topic_ = declared_topic(request, declared or {}, registry, None)
        return publish(self.lab.spark, request, topic_, self.lab.servers, Quiet(), on_step)


@pytest.fixture
def publishing(lab: Lab) -> Publishing:
    return Publishing(lab)


def table(low: int, high: int) -> pa.Table:
    numbers = range(low, high)
    return pa.table({"id": list(numbers), "name": [f"n{n}" for n in numbers], "even": [n % 2 == 0 for n in numbers]})


def rows_of(seen: list[Seen]) -> Counter[str]:
    """The values as a multiset."""
    return Counter(json.dumps(each.json, sort_keys=True) for each in seen)


def expected(low: int, high: int) -> Counter[str]:
    return Counter(json.dumps(row, sort_keys=True) for row in table(low, high).to_pylist())


def write_files(folder: Path, kind: str) -> Path:
    """The same rows in three files of a format, with a name that Spark would take for a pattern, and hidden ones."""
    folder.mkdir()
    for number in range(3):
        part = table(number * 200, (number + 1) * 200)
        name = folder / f"part[{number}].{kind}"
        if kind == "parquet":
            pq.write_table(part, name)
        elif kind == "orc":
            orc.write_table(part, name)
        elif kind == "json":
            name.write_text("".join(json.dumps(row) + "\n" for row in part.to_pylist()))
        elif kind == "csv":
            lines = [f"{row['id']},{row['name']},{str(row['even']).lower()}" for row in part.to_pylist()]
            name.write_text("\n".join(["id,name,even", *lines]) + "\n")
        else:
            fields = [
                {"name": "id", "type": "long"},
                {"name": "name", "type": "string"},
                {"name": "even", "type": "boolean"},
            ]
            with name.open("wb") as out:
                fastavro.writer(out, {"type": "record", "name": "row", "fields": fields}, part.to_pylist())
    (folder / "_SUCCESS").write_text("")
    (folder / f".hidden.{kind}").write_text("not a row\n")
    return folder


@pytest.mark.parametrize("kind", ["parquet", "orc", "json", "csv", "avro"])
def test_each_row_of_a_file_set_is_a_record_once_and_progress_counts_what_has_come_to_the_topic(
    kind: str, publishing: Publishing, lab: Lab
) -> None:
    topic = publishing.topic(kind)
    folder = write_files(publishing.folder / "in", kind)
    headers = {"name": "name", "none": "nullif(name, name)"}
    progress = SendingProgress(lab.spark, lab.servers, topic)
    try:
        assert progress.sample().sent == 0
        first = publishing(folder, topic, headers=headers)
        assert progress.sample().sent >= ROWS
    finally:
        progress.close()
    assert (first.rows, first.written, first.transactions, first.was_there) == (ROWS, ROWS, 1, False)
    assert source_shown(first) == "3 files"
    seen = lab.read(topic)
    assert rows_of(seen) == expected(0, ROWS)
    assert all(each.key == str(each.json["id"]).encode() for each in seen)
    assert all(each.headers == {"name": each.json["name"].encode()} for each in seen)
    if kind == "parquet":
        again = publishing(folder, topic, headers=dict(reversed(headers.items())))
        assert (again.name, again.rows, again.written, again.was_there) == (first.name, ROWS, 0, True)
        assert len(lab.read(topic)) == ROWS
        other = publishing(folder, topic, key=None, headers=headers)
        assert (other.written, other.name == first.name) == (ROWS, False), "another key is another publish"
        assert Counter(each.key is None for each in lab.read(topic)) == {True: ROWS, False: ROWS}


def test_no_value_is_lost_where_files_have_other_columns(publishing: Publishing, lab: Lab) -> None:
    folder = write_files(publishing.folder / "in", "parquet")
    extra = table(600, 610).append_column("more", pa.array(range(10)))
    pq.write_table(extra, folder / "z.parquet")
    topic = publishing.topic("merged")
    publishing(folder, topic)
    assert sorted(row["more"] for row in lab.values(topic) if "more" in row) == list(range(10))
    pq.write_table(pa.table({"id": ["x"], "name": ["y"], "even": [True]}), folder / "zz.parquet")
    with pytest.raises(PublishRefused, match=r"a column has several types: .*BIGINT.*STRING"):
        publishing(folder, topic)

    orcs = write_files(publishing.folder / "orc", "orc")
    orc.write_table(extra, orcs / "z.orc")
    topic = publishing.topic("merged-orc")
    publishing(orcs, topic)
    assert sorted(row["more"] for row in lab.values(topic) if "more" in row) == list(range(10))

    avros = write_files(publishing.folder / "avro", "avro")
    fields = [{"name": "id", "type": "long"}, {"name": "more", "type": "string"}]
    with (avros / "z.avro").open("wb") as out:
        fastavro.writer(out, {"type": "record", "name": "row", "fields": fields}, [{"id": 1, "more": "x"}])
    topic = publishing.topic("avros")
    with pytest.raises(PublishRefused, match=r"different columns: .*part.*name.*z\.avro.*more"):
        publishing(avros, topic)
    publishing(avros, topic, input_schema="id BIGINT, more STRING", order_by=("more",))
    assert [row["more"] for row in lab.values(topic) if "more" in row] == ["x"]


def test_the_columns_of_csv_files_are_those_of_their_headers(publishing: Publishing, lab: Lab) -> None:
    folder = publishing.folder / "in"
    folder.mkdir()
    (folder / "a.csv").write_text("id,name\n1,2\n")
    (folder / "b.csv").write_text("name,id\n3,4\n")
    topic = publishing.topic("swapped")
    with pytest.raises(PublishFailed, match=r"CSV header does not conform to the schema"):
        publishing(folder, topic)
    assert lab.read(topic) == []
    told = publishing(folder, topic, input_options={"EnforceSchema": "true"})
    assert told.written == 2, "by their position, as the user says"


def test_a_path_without_a_scheme_is_of_this_machine_whatever_the_default_file_system_is(
    publishing: Publishing, lab: Lab
) -> None:
    folder = publishing.folder / "in"
    (folder / "day=1").mkdir(parents=True)
    pq.write_table(table(0, 10), folder / "day=1" / "a.parquet")
    path = publishing.folder / "table"
    make_versions(lab, path, feed=False)
    topic = publishing.topic("default-fs")
    lab.spark.conf.set("fs.defaultFS", "hdfs://127.0.0.1:1")
    try:
        assert publishing(folder, topic).written == 10
        assert publishing(path, topic, version=1).written == 10
    finally:
        lab.spark.conf.unset("fs.defaultFS")
    assert Counter(row.get("day") for row in lab.values(topic)) == {1: 10, None: 10}


def test_folders_of_partitions_become_columns_and_a_pattern_selects_files(publishing: Publishing, lab: Lab) -> None:
    topic = publishing.topic("days")
    for day in (1, 2):
        folder = publishing.folder / "in" / f"day={day}"
        folder.mkdir(parents=True)
        pq.write_table(table(day * 10, day * 10 + 5), folder / "a.parquet")
    publishing(publishing.folder / "in", topic)
    assert Counter(row["day"] for row in lab.values(topic)) == {1: 5, 2: 5}
    publishing(publishing.folder / "in" / "day=2" / "*.parquet", topic, declared={"value": "string"}, value="name")
    assert Counter(each.value for each in lab.read(topic))[b"n20"] == 1


def make_versions(lab: Lab, path: Path, *, feed: bool) -> None:
    """1: ids 0 to 9. 2: 10 added. 3: 3 deleted, 4 renamed. 4: 3 back as it was, 5 doubled.

    The table is a copy of one that is written once.
    """
    made = lab.folder.parent / f"versions-{feed}"
    if not made.is_dir():
        _write_versions(lab.spark, made, feed=feed)
    shutil.copytree(made, path)


def _write_versions(spark: SparkSession, path: Path, *, feed: bool) -> None:
    properties = "TBLPROPERTIES ('delta.enableChangeDataFeed' = 'true')" if feed else ""
    spark.sql(f"CREATE TABLE delta.`{path}` (id BIGINT, name STRING) USING delta {properties}")
    spark.sql(f"INSERT INTO delta.`{path}` SELECT id, concat('n', id) FROM range(10)")
    spark.sql(f"INSERT INTO delta.`{path}` VALUES (10, 'n10')")
    spark.sql(f"MERGE INTO delta.`{path}` t USING (SELECT explode(array(3, 4)) AS id) s ON t.id = s.id "
              "WHEN MATCHED AND t.id = 3 THEN DELETE WHEN MATCHED THEN UPDATE SET name = 'other'")  # fmt: skip
    spark.sql(f"INSERT INTO delta.`{path}` VALUES (3, 'n3'), (5, 'n5')")


def test_a_version_of_a_table_is_published_whatever_came_later(publishing: Publishing, lab: Lab) -> None:
    path = publishing.folder / "table"
    make_versions(lab, path, feed=False)
    topic = publishing.topic("version")
    first = publishing(path, topic, version=1)
    assert source_shown(first) == "version 1"
    assert sorted(row["id"] for row in lab.values(topic)) == list(range(10))
    latest = publishing(path, topic)
    assert source_shown(latest) == "version 4"
    assert Counter(row["id"] for row in lab.values(topic))[5] == 3
    assert publishing(path, topic, version=1).was_there
    assert publishing(path, topic).was_there
    with pytest.raises(PublishRefused, match="version 9 cannot be read"):
        publishing(path, topic, version=9)


@pytest.mark.parametrize("feed", [True, False])
def test_a_difference_has_what_was_added_and_tombstones_for_keys_that_are_gone(
    feed: bool, publishing: Publishing, lab: Lab
) -> None:
    path = publishing.folder / "table"
    make_versions(lab, path, feed=feed)
    topic = publishing.topic("difference")

    told = publishing(path, topic, between=(1, 3))
    assert (told.written, told.by_feed) == (3, feed)
    seen = sorted(((each.key, each.json) for each in lab.read(topic)), key=repr)
    assert seen == [(b"10", {"id": 10, "name": "n10"}), (b"3", None), (b"4", {"id": 4, "name": "other"})]
    told = publishing(path, topic, between=(2, 4))
    # 3 was deleted and came back: nothing has changed.
    assert (told.rows, told.by_feed) == (2, feed)
    assert publishing(path, topic, between=(1, 3)).was_there
    with pytest.raises(PublishRefused, match="only --key can say"):
        publishing(path, topic, between=(1, 3), key=None)
    with pytest.raises(PublishRefused, match="is later than"):
        publishing(path, topic, between=(3, 1))


def test_by_a_registry_values_and_keys_are_framed(
    publishing: Publishing, lab: Lab, registry: Registry, schemas: SchemaRegistryClient
) -> None:
    topic = publishing.topic("framed")
    folder = write_files(publishing.folder / "in", "parquet")
    declared = {"value": "avro", "key": "avro"}
    told = publishing(folder, topic, declared=declared, registry=registry.url)
    assert told.written == ROWS
    decode = AvroDeserializer(schemas)
    values = [decode(each.value, SerializationContext(topic, MessageField.VALUE)) for each in lab.read(topic)]
    assert sorted(value["id"] for value in values) == list(range(ROWS))
    assert publishing(folder, topic, declared=declared, registry=registry.url).was_there
    with pytest.raises(PublishRefused, match="registry"):
        publishing(folder, topic, declared=declared)


def test_rows_of_a_key_are_in_the_order_asked_for(publishing: Publishing, lab: Lab) -> None:
    topic = publishing.topic("ordered")
    folder = publishing.folder / "in"
    folder.mkdir()
    for number in range(4):
        ids = list(range(number, 400, 4))
        pq.write_table(pa.table({"id": ids, "key": [n % 7 for n in ids]}), folder / f"{number}.parquet")
    with settings_for_a_job(lab.spark, {"spark.sql.shuffle.partitions": "3"}):
        told = publishing(folder, topic, key="key", order_by=("id DESC",), is_split=True, transaction_rows=150)
    assert told.transactions == 3
    by_key: dict[bytes | None, list[int]] = defaultdict(list)
    for each in lab.read(topic):
        by_key[each.key].append(each.json["id"])
    assert sum(map(len, by_key.values())) == 400
    assert all(ids == sorted(ids, reverse=True) for ids in by_key.values())


class Killed(Exception):
    """The process is gone: nothing after this moment happens."""


def test_a_split_publish_that_was_interrupted_continues_and_refuses_another_source(
    publishing: Publishing, lab: Lab
) -> None:
    topic = publishing.topic("split")
    folder = write_files(publishing.folder / "in", "json")
    split: dict[str, Any] = {"is_split": True, "transaction_rows": 200}
    with pytest.raises(PublishRefused, match=r"600 rows are too many for one transaction.*--split"):
        publishing(folder, topic, transaction_rows=200)
    committed = 0

    def stop(step: str) -> None:
        nonlocal committed
        committed += step == "committed"
        if committed == 2:
            raise Killed

    with pytest.raises(Killed):
        publishing(folder, topic, stop, **split)
    partly = len(lab.read(topic))
    assert 0 < partly < ROWS

    last = folder / "part[2].json"
    before = last.read_text()
    last.write_text(before.replace("n599", "n_599"))
    with pytest.raises(PublishRefused, match=r"has changed.*2 of its 3 transactions are in"):
        publishing(folder, topic, **split)
    last.write_text(before)
    told = publishing(folder, topic, **split)
    assert (told.rows, told.written, told.transactions) == (ROWS, ROWS - partly, 3)
    assert rows_of(lab.read(topic)) == expected(0, ROWS)
    assert publishing(folder, topic).was_there

    last.write_text(before.replace("n599", "n_599"))
    assert publishing(folder, topic).written == ROWS, "a finished publish leaves the next one free"


def stop_after(committed: int) -> OnStep:
    """A process that ends after some of its transactions."""
    seen = 0

    def stop(step: str) -> None:
        nonlocal seen
        seen += step == "committed"
        if seen == committed:
            raise Killed

    return stop


def test_a_key_that_changes_from_run_to_run_cannot_split_a_publish(publishing: Publishing, lab: Lab) -> None:
    topic = publishing.topic("changing-key")
    folder = write_files(publishing.folder / "in", "parquet")
    changing = {
        "concat(id, current_date())": "CurrentDate",
        "date_format(now(), 'yyyy') || id": "Now",
        "id + unix_timestamp()": "CurrentTimestamp",
        "id + rand()": "Rand",
        "spark_partition_id()": "SparkPartitionID",
        "monotonically_increasing_id()": "MonotonicallyIncreasingID",
        "uuid()": "Uuid",
    }
    for key, function in changing.items():
        with pytest.raises(PublishRefused, match=f"{function} gives other results in each run"):
            publishing(folder, topic, key=key, is_split=True, transaction_rows=200)
    assert lab.read(topic) == []


def test_a_split_publish_whose_rows_would_be_divided_otherwise_is_refused(publishing: Publishing, lab: Lab) -> None:
    topic = publishing.topic("moved")
    folder = write_files(publishing.folder / "in", "parquet")
    split: dict[str, Any] = {"is_split": True, "transaction_rows": 200, "key": "concat(_metadata.file_path, id)"}
    with pytest.raises(Killed):
        publishing(folder, topic, stop_after(1), **split)
    partly = len(lab.read(topic))
    moved = folder.rename(publishing.folder / "moved")
    with pytest.raises(PublishRefused, match=r"are divided otherwise.*1 of 3 transactions are written"):
        publishing(moved, topic, **split)
    assert len(lab.read(topic)) == partly
    moved.rename(folder)
    publishing(folder, topic, **split)
    assert rows_of(lab.read(topic)) == expected(0, ROWS)


def test_an_interrupted_publish_can_be_given_up(publishing: Publishing, lab: Lab) -> None:
    topic = publishing.topic("given-up")
    folder = write_files(publishing.folder / "in", "json")

    def stop(step: str) -> None:
        if step == "committed":
            raise Killed

    with pytest.raises(Killed):
        publishing(folder, topic, stop, is_split=True, transaction_rows=300)
    (folder / "part[2].json").unlink()
    with pytest.raises(PublishRefused, match="--abandon"):
        publishing(folder, topic)
    assert publishing(folder, topic, abandons=True).written == 400


def test_a_changed_source_is_noticed_by_its_path_whatever_else_has_changed(publishing: Publishing, lab: Lab) -> None:
    topic = publishing.topic("other-columns")
    folder = write_files(publishing.folder / "in", "parquet")
    split: dict[str, Any] = {"is_split": True, "transaction_rows": 300}
    with pytest.raises(Killed):
        publishing(folder, topic, stop_after(1), given_id=f"{lab.prefix}first", **split)
    partly = len(lab.read(topic))
    with pytest.raises(PublishRefused, match=r"under another --id: 1 of its \d transactions are in"):
        publishing(folder, topic, **split)
    with pytest.raises(PublishRefused, match="--abandon"):
        publishing(folder, topic, given_id=f"{lab.prefix}second", **split)
    extra = table(600, 610)
    pq.write_table(extra.append_column("more", extra["id"]), folder / "later.parquet")
    with pytest.raises(PublishRefused, match="has changed"):
        publishing(folder, topic, key="name", **split)
    assert len(lab.read(topic)) == partly


def test_another_publish_that_runs_is_left_alone_unless_it_is_given_up(publishing: Publishing, lab: Lab) -> None:
    topic = publishing.topic("live")
    folder = write_files(publishing.folder / "in", "parquet")
    split: dict[str, Any] = {"is_split": True, "transaction_rows": 300}
    refusals: list[str] = []

    def meanwhile(step: str) -> None:
        if step == "records_sent" and len(refusals) < 2:
            with pytest.raises(PublishRefused, match="has a transaction open") as caught:
                Publishing(lab)(folder, topic, key="name", **split)
            refusals.append(str(caught.value))

    told = publishing(folder, topic, meanwhile, **split)
    assert (told.written, told.transactions, len(refusals)) == (ROWS, 2, 2)
    assert "0 of its 2 transactions" in refusals[0]
    assert "1 of its 2 transactions" in refusals[1]
    assert rows_of(lab.read(topic)) == expected(0, ROWS)

    done: list[Published] = []

    def overtake(step: str) -> None:
        if step == "records_sent" and not done:
            done.append(Publishing(lab)(folder, topic, key="name", abandons=True, **split))

    with pytest.raises(PublishFailed, match="another run of it has taken over"):
        publishing(folder, topic, overtake, key="id + 1", **split)
    assert done[0].written == ROWS
    assert len(lab.read(topic)) == 2 * ROWS


def test_other_columns_by_the_same_schema_file_are_another_publish(publishing: Publishing, lab: Lab) -> None:
    topic = publishing.topic("schema-file")
    folder = write_files(publishing.folder / "in", "csv")
    schema = publishing.folder / "columns.json"

    def declare(kind: str) -> None:
        fields = {"id": {"type": kind}, "name": {"type": "string"}, "even": {"type": "boolean"}}
        schema.write_text(json.dumps({"type": "object", "properties": fields}))

    declare("integer")
    assert publishing(folder, topic, input_schema=str(schema)).written == ROWS
    assert publishing(folder, topic, input_schema=str(schema)).was_there
    declare("string")
    assert publishing(folder, topic, input_schema=str(schema)).written == ROWS
    assert Counter(type(row["id"]) for row in lab.values(topic)) == {int: ROWS, str: ROWS}


def test_an_id_names_a_publish_and_refuses_another(publishing: Publishing, lab: Lab) -> None:
    topic = publishing.topic("named")
    folder = write_files(publishing.folder / "in", "parquet")
    given_id = f"{lab.prefix}daily"
    assert publishing(folder, topic, given_id=given_id).name == given_id
    assert publishing(folder, topic, given_id=given_id).was_there
    (folder / "part[2].parquet").unlink()
    with pytest.raises(PublishRefused, match="is that of another publish"):
        publishing(folder, topic, given_id=given_id)
    assert len(lab.read(topic)) == ROWS


def test_a_topic_made_anew_is_another_topic(publishing: Publishing, lab: Lab) -> None:
    topic = publishing.topic("anew")
    folder = write_files(publishing.folder / "in", "parquet")
    publishing(folder, topic)
    lab.admin.delete_topics([topic])
    publishing.topic("anew")
    assert publishing(folder, topic).written == ROWS
    with pytest.raises(PublishRefused, match="there is no topic"):
        publishing(folder, f"{topic}-missing")


def test_a_source_that_changes_while_it_is_published_aborts(publishing: Publishing, lab: Lab) -> None:
    topic = publishing.topic("changing")
    folder = write_files(publishing.folder / "in", "parquet")

    def add(step: str) -> None:
        if step == "transaction_open":
            pq.write_table(table(600, 700), folder / "later.parquet")

    with pytest.raises(PublishFailed, match=r"later.parquet is new while it was published; nothing was committed"):
        publishing(folder, topic, add)
    assert lab.read(topic) == []
    assert publishing(folder, topic).written == 700


@pytest.mark.parametrize("is_split", [False, True])
def test_a_line_that_does_not_fit_is_named_and_nothing_is_published(
    is_split: bool, publishing: Publishing, lab: Lab
) -> None:
    topic = publishing.topic("misfit")
    folder = write_files(publishing.folder / "in", "json")
    bad = folder / "part[1].json"
    lines = bad.read_text().splitlines()
    lines[41] = '{"id": 241, "name": "n241", "even": "maybe"}'
    bad.write_text("\n".join(lines) + "\n")
    more: dict[str, Any] = {"is_split": True, "transaction_rows": 100} if is_split else {}
    with pytest.raises(PublishFailed, match=r"row 42 of file:.*part.*1.*json cannot be written: .*the field even"):
        publishing(folder, topic, input_schema="id BIGINT, name STRING, even BOOLEAN", **more)
    assert lab.read(topic) == []


def test_a_record_that_the_topic_does_not_take_is_named(publishing: Publishing, lab: Lab) -> None:
    topic = publishing.topic("small", **{"max.message.bytes": "2000"})
    folder = write_files(publishing.folder / "in", "parquet")
    pq.write_table(
        pa.table({"id": [1000, 1001], "name": ["short", "x" * 5000], "even": [True, True]}), folder / "z.parquet"
    )
    with pytest.raises(PublishFailed, match=r"row 2 of .*z.parquet cannot be written: .*max.message.bytes is 2,000"):
        publishing(folder, topic)
    assert lab.read(topic) == []


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"key": "missing"}, "Spark refuses an expression: .*missing"),
        ({"order_by": ("nowhere",)}, "Spark refuses an expression"),
        ({"declared": {"value": "raw"}}, "takes a column named value"),
        ({"declared": {"value": "json", "schema": "SCHEMA"}}, "cannot read"),
        ({"declared": {"value": "csv"}}, "needs a schema"),
        ({"input_options": {"mode": "DROPMALFORMED"}}, "cannot be set"),
        ({"path": "nowhere"}, "there is no such file or folder"),
        ({"path": "empty"}, "there are no files"),
        ({"version": 3}, "there is no Delta table"),
    ],
)
def test_faults_are_refused_before_the_first_record(
    more: dict[str, Any], message: str, publishing: Publishing, lab: Lab
) -> None:
    topic = publishing.topic("refused")
    folder = write_files(publishing.folder / "in", "parquet")
    (publishing.folder / "empty").mkdir()
    given = dict(more)
    path = publishing.folder / given.pop("path", folder.name)
    with pytest.raises(PublishRefused, match=message) as caught:
        publishing(path, topic, **given)
    assert "\n" not in str(caught.value)
    assert lab.read(topic) == []


def test_a_second_run_takes_over_and_the_first_ends_without_a_record(publishing: Publishing, lab: Lab) -> None:
    topic = publishing.topic("twice")
    folder = write_files(publishing.folder / "in", "parquet")
    done: list[Published] = []

    def overtake(step: str) -> None:
        if step == "records_sent" and not done:
            done.append(Publishing(lab)(folder, topic))

    with pytest.raises(PublishFailed, match="another run of it has taken over"):
        publishing(folder, topic, overtake)
    assert done[0].written == ROWS
    assert rows_of(lab.read(topic)) == expected(0, ROWS)
