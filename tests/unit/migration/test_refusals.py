"""Folders that are not migrated: one line says which, why, and what to do; nothing is changed."""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path

import orjson
import pytest

from headwater.cli.main import main
from headwater.cli.shell.cluster_rights import check_rights
from headwater.cli.shell.errors import CliError
from headwater.cluster_folder import check_folder
from headwater.folder_lock import lock_folder
from headwater.logtier.metadata.image import MetadataImage
from headwater.logtier.metadata.journal import HEADER, encode_entry
from headwater.logtier.metadata.local import LocalMetadataStore
from headwater.logtier.metadata.paths import CONTROLLER_EPOCH, TOPICS, known_broker_path, topic_path
from headwater.logtier.metadata.store import Create, Delete, Operation, SetData
from headwater.logtier.metadata.topic_nodes import chunk_path
from headwater.logtier.runtime.disk import DirectoryEntry, RealDisk
from headwater.logtier.security.acls import AclBinding, PatternType, PermissionType
from headwater.logtier.security.operations import CLUSTER_NAME, AclOperation, ResourceType
from headwater.logtier.security.sasl_session import ANONYMOUS
from headwater.migration.migrate import Migrating
from headwater.migration.one_node_folder import MigrationError
from headwater.migration_journal import MIGRATION_FOLDER
from headwater.services import NodeStartError
from tests.unit.migration.conftest import KillingDisk, NodesInAFile, migrating, serve_and_stop, tree


def refused(folder: Path) -> str:
    """The line with which a migration is refused; it has changed nothing."""
    before = tree(folder)
    with pytest.raises(MigrationError) as caught:
        migrating(folder).migrate(None)
    assert tree(folder) == before
    assert "\n" not in str(caught.value)
    return str(caught.value)


def write_metadata(folder: Path, *operations: Operation) -> None:
    """Change the metadata of a stopped node."""

    async def write() -> None:
        store = LocalMetadataStore(str(folder / "__cluster_metadata"), RealDisk())
        await store.start()
        try:
            await store.multi(operations)
        finally:
            await store.close()

    asyncio.run(write())


def test_a_running_node_is_left_alone(node_folder: Path) -> None:
    for held in (node_folder, node_folder / "__cluster_metadata"):
        lock = lock_folder(str(held))
        try:
            assert refused(node_folder).startswith(f"{node_folder} is in use: stop the node or the cluster first")
        finally:
            os.close(lock)


@pytest.mark.parametrize("name", ["empty", "missing", "a file"])
def test_a_folder_of_something_else_is_left_alone(tmp_path: Path, name: str) -> None:
    folder = tmp_path / name
    if name == "empty":
        folder.mkdir()
    elif name == "a file":
        folder.touch()
    with pytest.raises(MigrationError, match=r"is not the folder of a node|is not a folder"):
        migrating(folder).migrate(None)
    assert not folder.is_dir() or os.listdir(folder) == []


def test_a_broker_of_a_cluster_is_left_alone(node_folder: Path) -> None:
    shutil.rmtree(node_folder / "__cluster_metadata")
    assert "has no __cluster_metadata: its broker belongs to a cluster already" in refused(node_folder)


def test_a_node_with_several_log_folders_is_left_alone(node_folder: Path) -> None:
    (node_folder / "known-log-directories").write_text("a /disk1\nb /disk2\n")
    line = refused(node_folder)
    assert "is one of 2 log folders (log.dirs: /disk1, /disk2); only a node with one folder can be migrated" in line


def test_an_earlier_folder_is_to_be_started_once(node_folder: Path) -> None:
    earlier = orjson.dumps({"version": 3, "topic_id": "AAAAAAAAAAAAAAAAAAAACw", "partitions": {"0": [1]}})
    write_metadata(node_folder, Create(topic_path("old"), earlier))
    line = refused(node_folder)
    assert f"is of an earlier version ({TOPICS}/old has no partition states): start the node once" in line
    asyncio.run(serve_and_stop(node_folder))
    assert migrating(node_folder).migrate(None).brokers == (1, 2, 3)


def test_metadata_without_its_first_nodes_is_of_an_earlier_version(node_folder: Path) -> None:
    write_metadata(node_folder, Delete(CONTROLLER_EPOCH))
    assert f"is of an earlier version ({CONTROLLER_EPOCH} is missing)" in refused(node_folder)


def test_damaged_metadata_is_named(node_folder: Path) -> None:
    write_metadata(node_folder, SetData(chunk_path("flights", 0), b"[damaged"))
    assert f"the metadata node {chunk_path('flights', 0)} has data that this version cannot read" in refused(
        node_folder
    )
    journal = node_folder / "__cluster_metadata" / "journal"
    journal.write_bytes(b"something else")
    assert "is not a metadata journal of this version" in refused(node_folder)
    journal.write_bytes(HEADER + encode_entry(b"17"))
    assert "has entries that this version cannot read; use the version that wrote it" in refused(node_folder)


def test_metadata_of_several_brokers_is_not_that_of_one_node(node_folder: Path) -> None:
    write_metadata(node_folder, Delete(known_broker_path(1)))
    assert "its metadata knows the brokers none, and its logs are those of broker 1" in refused(node_folder)


def test_logs_of_another_cluster_are_not_carried_over(node_folder: Path) -> None:
    meta = node_folder / "meta.properties"
    lines = [line for line in meta.read_text().splitlines() if not line.startswith("cluster.id")]
    meta.write_text("\n".join([*lines, "cluster.id=another", ""]))
    assert "its logs are those of cluster another, and its metadata those of cluster" in refused(node_folder)


@pytest.mark.parametrize("name", ["zookeeper", "broker-2", "broker-3.yaml"])
def test_a_name_of_the_cluster_that_is_taken_is_refused(node_folder: Path, name: str) -> None:
    if name == "broker-2":
        shutil.rmtree(node_folder / name)
        (node_folder / name).mkdir()
        (node_folder / name / "meta.properties").touch()
    else:
        (node_folder / name).touch()
    assert refused(node_folder).startswith(f"{node_folder}/{name} is in the way")


def test_a_damaged_layout_is_one_line(node_folder: Path) -> None:
    (node_folder / "cluster.properties").write_text("brokers=many\n")
    assert refused(node_folder).startswith(f"{node_folder}/cluster.properties is damaged")


def test_a_link_that_would_lead_nowhere_is_refused(node_folder: Path) -> None:
    log, elsewhere = node_folder / "flights-0", node_folder.parent / "elsewhere"
    log.rename(elsewhere)
    log.symlink_to(Path("..", "elsewhere"))
    assert refused(node_folder).startswith(f"{log} is a link to ../elsewhere, which would lead nowhere once it is")
    log.unlink()
    log.symlink_to(node_folder.parent / "unmounted")
    with pytest.raises(MigrationError, match="unmounted, which would lead nowhere"):
        migrating(node_folder).migrate(None)
    log.unlink()
    log.symlink_to(elsewhere)
    migrating(node_folder).migrate(None)
    assert (node_folder / "broker-1" / "flights-0" / "partition.metadata").is_file()


def test_a_full_disk_is_refused_before_anything_is_written(node_folder: Path) -> None:
    class FullDisk(KillingDisk):
        def free_bytes(self, path: str) -> int:
            return 100 << 20

    disk = FullDisk()
    before = tree(node_folder)
    with pytest.raises(MigrationError, match="the disk has 100 MiB free, and the copy of the metadata needs 257 MiB"):
        Migrating(str(node_folder), disk, NodesInAFile(disk), lambda _: None).migrate(None)
    assert (tree(node_folder), disk.changes) == (before, 0)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"version": 1}', '{"version": 2}'])
def test_a_damaged_journal_is_refused_by_all(node_folder: Path, text: str) -> None:
    (node_folder / MIGRATION_FOLDER).mkdir()
    (node_folder / MIGRATION_FOLDER / "journal.json").write_text(text)
    assert "journal.json" in refused(node_folder)
    with pytest.raises(MigrationError, match=r"journal\.json"):
        migrating(node_folder).go_back()
    with pytest.raises(NodeStartError, match=r"journal\.json"):
        check_folder(str(node_folder), 1)


def test_a_folder_that_cannot_be_read_is_one_line(node_folder: Path) -> None:
    class Unreadable(KillingDisk):
        def listdir(self, path: str) -> list[DirectoryEntry]:
            raise OSError(5, "Input/output error", path)

    disk = Unreadable()
    with pytest.raises(MigrationError) as caught:
        Migrating(str(node_folder), disk, NodesInAFile(disk), lambda _: None).plan(None)
    assert str(caught.value).startswith(f"{node_folder}: Input/output error; check the path and its permissions")


def test_going_back_where_nothing_has_begun_is_refused(node_folder: Path) -> None:
    with pytest.raises(MigrationError, match="no migration has begun there"):
        migrating(node_folder).go_back()


def test_properties_of_one_broker_are_refused_before_they_keep_the_cluster_from_starting(
    node_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    properties = tmp_path / "broker.yaml"
    properties.write_text("listeners: SASL_SSL://:9092\n")
    monkeypatch.setenv("HEADWATER_BROKER_CONFIG", str(properties))
    before = tree(node_folder)
    assert main(["cluster", "migrate", "--data", str(node_folder), "-y"]) == 2
    assert f"{properties} sets listeners, which each broker of a cluster has for itself" in capsys.readouterr().err
    assert tree(node_folder) == before
    migrating(node_folder).migrate(None)
    assert main(["cluster", "migrate", "--data", str(node_folder), "--back"]) == 0
    assert tree(node_folder) == before


def test_the_plan_is_shown_first_and_a_script_has_to_confirm(
    node_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = tree(node_folder)
    assert main(["cluster", "migrate", "--data", str(node_folder), "--dry-run"]) == 0
    shown = capsys.readouterr().out
    assert "2 topics, 5 partitions" in shown
    assert f"move {len([name for name in os.listdir(node_folder) if name[0] != '_']) - 1} files and folders" in shown
    assert main(["cluster", "migrate", "--data", str(node_folder)]) == 2
    assert f"would migrate {node_folder}; give --yes to confirm" in capsys.readouterr().err
    assert tree(node_folder) == before


def brokers_may(*operations: AclOperation) -> list[AclBinding]:
    return [
        AclBinding(ResourceType.cluster, CLUSTER_NAME, PatternType.literal, ANONYMOUS, "*", each, PermissionType.allow)
        for each in operations
    ]


AUTHORIZER = "authorizer.class.name: org.apache.kafka.metadata.authorizer.StandardAuthorizer"
LISTENER_WITH_LOGIN = "listener.security.protocol.map: PLAINTEXT:SASL_PLAINTEXT"


@pytest.mark.parametrize(
    ("lines", "rules", "is_refused"),
    [
        ("", [], False),
        (AUTHORIZER, [], True),
        (f"{AUTHORIZER}\nsuper.users: User:admin", [], True),
        (f"{AUTHORIZER}\nsuper.users: User:admin;User:ANONYMOUS", [], False),
        (f"{AUTHORIZER}\nallow.everyone.if.no.acl.found: true", [], False),
        (f"{AUTHORIZER}\nallow.everyone.if.no.acl.found: true", brokers_may(AclOperation.describe), True),
        (AUTHORIZER, brokers_may(AclOperation.cluster_action), True),
        (AUTHORIZER, brokers_may(AclOperation.cluster_action, AclOperation.create), False),
        # The brokers have another name.
        (f"{AUTHORIZER}\n{LISTENER_WITH_LOGIN}", [], False),
    ],
)
def test_a_cluster_whose_brokers_could_not_replicate_is_not_begun(
    lines: str, rules: list[AclBinding], is_refused: bool, tmp_path: Path
) -> None:
    properties = tmp_path / "broker.yaml"
    properties.write_text(lines)
    image = MetadataImage(acls={str(place): each for place, each in enumerate(rules)})
    if is_refused:
        with pytest.raises(CliError, match=r"User:ANONYMOUS.*super\.users"):
            check_rights("cluster migrate", str(properties), image)
    else:
        check_rights("cluster migrate", str(properties), image)


def test_a_node_whose_rules_do_not_name_the_brokers_stays_one(
    node_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    properties = tmp_path / "broker.yaml"
    properties.write_text(AUTHORIZER)
    monkeypatch.setenv("HEADWATER_BROKER_CONFIG", str(properties))
    before = tree(node_folder)
    assert main(["cluster", "migrate", "--data", str(node_folder), "-y"]) == 2
    assert "add User:ANONYMOUS to super.users" in capsys.readouterr().err
    assert tree(node_folder) == before


def test_a_new_cluster_whose_brokers_could_not_replicate_does_not_start(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    properties = tmp_path / "broker.yaml"
    properties.write_text(AUTHORIZER)
    monkeypatch.setenv("HEADWATER_BROKER_CONFIG", str(properties))
    assert main(["up", "--brokers", "3", "--data", str(tmp_path / "data")]) == 2
    assert "add User:ANONYMOUS to super.users" in capsys.readouterr().err
    assert not (tmp_path / "data").exists()
