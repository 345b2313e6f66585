"""Archives that topic configs declare, on a real broker: enabled, changed and disabled while an archiver runs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)
from confluent_kafka.schema_registry import SchemaRegistryClient

import headwater
from headwater.api.topic_model import TopicRequest
from headwater.pipelines.archive import running
from headwater.pipelines.archive.archive_file import parse_declared
from headwater.pipelines.archive.configured import ENABLE, TABLE, VALUE, KnownArchives, chosen_archives
from headwater.pipelines.archive.listing import ArchiveListing
from headwater.pipelines.archive.running import ArchiveRun, RoundFailure
from headwater.pipelines.archive.status import status_of
from headwater.pipelines.file_systems.opening import file_system
from headwater.pipelines.seam.table_offsets import table_offsets
from tests.spark.pipelines.archive.conftest import Archives
from tests.spark.pipelines.archive.test_registry_formats import avro, avro_schema
from tests.spark.registry_process import registry, schemas
from tests.waiting import until

__all__ = ["registry", "schemas"]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

WAIT_S = 300.0


class Configured:
    """Topics with configs, and archivers that know those of this test alone: the broker has others as well."""

    def __init__(self, archives: Archives) -> None:
        self.archives = archives
        self.lab = archives.lab
        self.failures: list[RoundFailure] = []
        self._client = AdminClient({"bootstrap.servers": self.lab.servers})

    def name(self, topic: str) -> str:
        return topic.replace("@", self.lab.prefix)

    def create(self, topic: str, **configs: str) -> None:
        self.lab.admin.create_topic(TopicRequest(self.name(topic), partitions_count=1))
        self.alter(topic, **configs)

    def alter(self, topic: str, **configs: str) -> None:
        """Set configs, named by the last part of their names; '' removes one."""
        entries = [
            ConfigEntry(
                f"headwater.archive.{name}",
                value or None,
                incremental_operation=AlterConfigOpType.SET if value else AlterConfigOpType.DELETE,
            )
            for name, value in configs.items()
        ]
        if entries:
            resource = ConfigResource(ResourceType.TOPIC, self.name(topic), incremental_configs=entries)
            for future in self._client.incremental_alter_configs([resource]).values():
                future.result(60)

    def listing(self, text: str) -> ArchiveListing:
        folder = str(self.lab.folder)
        declared = parse_declared(self.name(text), "archive.yaml", {}, folder, {}, lambda _: "")
        return ArchiveListing(declared, self.lab.servers)

    def known(self, text: str) -> KnownArchives:
        return self.mine(self.listing(text).now())

    def mine(self, known: KnownArchives) -> KnownArchives:
        names = [*(each.topic for each in known.specs), *known.refused]
        return chosen_archives(known, [name for name in names if name.startswith(self.lab.prefix)] or ["none"])

    @contextmanager
    def running(self, text: str) -> Iterator[ArchiveRun]:
        """An archiver that runs."""
        listing = self.listing(text)

        def listed(present: Collection[str]) -> KnownArchives:
            return self.mine(listing.now(present))

        first = listing.declared()
        run = ArchiveRun(
            first.specs, first.loaded, self.lab.servers, file_system, listed=listed, on_failure=self.failures.append
        )
        thread = threading.Thread(target=run.run, args=(lambda: self.lab.spark,))
        thread.start()
        try:
            yield run
        finally:
            run.stop()
            thread.join(WAIT_S)
        assert not thread.is_alive()

    def has(self, topic: str, rows: int) -> Callable[[], bool]:
        """Whether a table has rows."""

        def ask() -> bool:
            return table_offsets(str(self.archives.path(topic))) is not None and len(self.archives.rows(topic)) == rows

        return ask


@pytest.fixture
def configured(archives: Archives, monkeypatch: pytest.MonkeyPatch) -> Configured:
    monkeypatch.setattr(running, "LIST_S", 0.5)
    return Configured(archives)


FILE = 'archive: {root: lake, freshness: 1 second, topics: {"@named": }}'


def test_topics_are_enabled_changed_and_disabled_while_an_archiver_runs(configured: Configured) -> None:
    lab = configured.lab
    for topic in ("@named", "@later", "@moved"):
        configured.create(topic)
        lab.produce(topic, [b"one"])
    with configured.running(FILE) as run:
        until(configured.has("@named", 1), patience_s=WAIT_S)
        # The group is where the table begins, and a grace behind what was archived.
        named = configured.name("@named")
        until(lambda: any(each.topic == named and each.held_bytes for each in run.counts()), patience_s=WAIT_S)
        configured.alter("@later", enable="true", value="string")
        configured.alter("@moved", enable="true", table=str(configured.archives.path("@first")))
        until(configured.has("@later", 1), patience_s=WAIT_S)
        until(configured.has("@first", 1), patience_s=WAIT_S)
        # Another table is another archive, from the beginning on; the earlier one stays as it is.
        configured.alter("@moved", table="")
        lab.produce("@moved", [b"two"])
        until(configured.has("@moved", 2), patience_s=WAIT_S)
        configured.alter("@later", enable="false")
        until(
            lambda: all(each.topic != configured.name("@later") or each.is_ended for each in run.counts()),
            patience_s=WAIT_S,
        )
        lab.produce("@later", ["two"])
        lab.produce("@named", [b"two"])
        until(configured.has("@named", 2), patience_s=WAIT_S)
        assert [row[2] for row in configured.archives.rows("@later", "value")] == ["one"]
        assert len(configured.archives.rows("@first")) == 1
        configured.alter("@later", enable="true")
        until(configured.has("@later", 2), patience_s=WAIT_S)
    assert configured.failures == []
    assert [row[2] for row in configured.archives.rows("@later", "value")] == ["one", "two"]


def test_a_wrong_combination_stops_only_its_topic_with_one_line(configured: Configured) -> None:
    lab = configured.lab
    configured.create("@named")
    configured.create("@wrong", enable="true", table="relative/path")
    configured.create("@bytes", enable="true")
    # A scheme that there is, and a URL that the settings do not complete: known only when the archive is opened.
    configured.create("@nowhere", enable="true", table="hdfs:///lake/x")
    for topic in ("@named", "@wrong", "@bytes"):
        lab.produce(topic, [b"one"])
    with configured.running(FILE) as run:
        until(configured.has("@named", 1), patience_s=WAIT_S)
        until(configured.has("@bytes", 1), patience_s=WAIT_S)
        # The values of a table that has bytes are no text.
        configured.alter("@bytes", value="string")
        lab.produce("@bytes", [b"two"])
        lab.produce("@named", [b"two"])
        until(configured.has("@named", 2), patience_s=WAIT_S)
        until(lambda: any(each.topic == configured.name("@bytes") for each in configured.failures), patience_s=WAIT_S)
        failing = {each.topic for each in run.counts() if each.is_failing}
        assert failing == {configured.name(each) for each in ("@wrong", "@bytes", "@nowhere")}
        configured.alter("@wrong", table="")
        until(configured.has("@wrong", 1), patience_s=WAIT_S)
    wrong = [each for each in configured.failures if each.topic == configured.name("@wrong")]
    reason = f"{TABLE} is an absolute path or a URL, and not 'relative/path'"
    configs = f"the topic's configs: {ENABLE}=true, {TABLE}=relative/path, {VALUE}=raw"
    assert [each.error for each in wrong] == [f"{reason} ({configs})"]
    bytes_ = [each.error for each in configured.failures if each.topic == configured.name("@bytes")]
    assert all(f"(the topic's configs: {ENABLE}=true, {VALUE}=string)" in each for each in bytes_)
    assert len(configured.archives.rows("@bytes")) == 1
    nowhere = [each for each in configured.failures if each.topic == configured.name("@nowhere")]
    assert all("hdfs:///lake/x" in each.error and each.is_user_error for each in nowhere)


def test_the_file_wins_and_a_plan_says_so(configured: Configured) -> None:
    configured.create("@named", enable="true", table="/elsewhere", value="string")
    configured.create("@t", enable="true", value="string")
    known = configured.known(FILE)
    assert {each.topic: each.table for each in known.specs} == {
        configured.name(name): str(configured.archives.path(name)) for name in ("@named", "@t")
    }
    said = [
        status_of(each, configured.lab.servers, overrules=each.topic in known.overruled).value()["declared"]
        for each in known.specs
    ]
    assert said == [
        "the file, which wins over the topic's configs headwater.archive.*",
        f"the topic's configs ({ENABLE}=true, {VALUE}=string)",
    ]


def test_values_of_the_registry_have_the_format_of_their_schema(
    configured: Configured, registry: Any, schemas: SchemaRegistryClient
) -> None:
    archives = configured.archives
    text = f'registry: {{url: "{registry.url}"}}\narchive: {{root: lake}}\n'
    configured.create("@t", enable="true", value="registry")
    configured.create("@unknown", enable="true", value="registry")
    archives.lab.produce("@t", [avro(archives, schemas, avro_schema(), {"id": 1, "name": "one"})])
    known = configured.known(text)
    assert f"{configured.name('@unknown')}-value" in known.refused[configured.name("@unknown")].reason
    run = ArchiveRun(known.specs, known.loaded, archives.lab.servers, file_system)
    assert run.run_once(lambda: archives.lab.spark) == []
    assert archives.rows("@t", "id", "name") == [(0, 0, 1, "one")]
    without = configured.known("archive: {root: lake}")
    assert "there is no schema registry" in without.refused[configured.name("@t")].reason


def test_a_notebook_knows_archives_of_topic_configs(configured: Configured) -> None:
    lab = configured.lab
    configured.create("@t", enable="true", value="string")
    lab.produce("@t", ["one", "two"])
    known = configured.known("archive: {root: lake}")
    assert ArchiveRun(known.specs, known.loaded, lab.servers, file_system).run_once(lambda: lab.spark) == []
    lab.produce("@t", ["three"])
    frame = headwater.table(
        lab.spark, configured.name("@t"), bootstrap_servers=lab.servers, archive=str(lab.folder / "lake")
    )
    assert sorted(row.value for row in frame.select("value").collect()) == ["one", "three", "two"]
    assert "_offset" in frame.columns
