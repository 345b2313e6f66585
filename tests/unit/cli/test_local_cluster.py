"""The folder of a cluster on one machine, and what its brokers are started with."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from headwater.folder_lock import lock_folder
from headwater.local_cluster import LAYOUT_FILE, ClusterFolderError, LocalCluster, check_folder, stored_brokers
from headwater.process_list import PROCESS_LIST, read_process_list, remove_process_list
from headwater.services import NodeStartError
from headwater.zookeeper_server import ZooKeeperError, ZooKeeperPlace, ZooKeeperProcess, java_command


def test_an_empty_folder_is_for_any_number_of_brokers(tmp_path: Path) -> None:
    for brokers in (1, 3):
        check_folder(str(tmp_path), brokers)
        check_folder(str(tmp_path / "missing"), brokers)


@pytest.mark.parametrize("name", ["meta.properties", "__cluster_metadata"])
def test_the_folder_of_one_node_is_not_that_of_a_cluster(tmp_path: Path, name: str) -> None:
    (tmp_path / name).touch()
    check_folder(str(tmp_path), 1)
    with pytest.raises(ClusterFolderError, match="is the folder of one node without replicas: start it without"):
        check_folder(str(tmp_path), 3)


def test_a_cluster_keeps_its_number_of_brokers(tmp_path: Path) -> None:
    (tmp_path / LAYOUT_FILE).write_text("brokers=3\n")
    assert stored_brokers(str(tmp_path)) == 3
    check_folder(str(tmp_path), 3)
    for other in (1, 2):
        with pytest.raises(ClusterFolderError, match="is the folder of 3 brokers: start it with --brokers 3"):
            check_folder(str(tmp_path), other)


@pytest.mark.parametrize("text", ["", "brokers=", "brokers=1\n", "brokers=1000", "brokers=-3", "three", "\0" * 2000])
def test_a_damaged_layout_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / LAYOUT_FILE).write_text(text)
    with pytest.raises(ClusterFolderError, match=r"is damaged: it must be one line such as brokers=3"):
        check_folder(str(tmp_path), 3)


def test_a_cluster_does_not_start_in_the_folder_of_a_node(tmp_path: Path) -> None:
    (tmp_path / "meta.properties").touch()
    with pytest.raises(NodeStartError, match="is the folder of one node"):
        LocalCluster(str(tmp_path), 3).start()
    assert os.listdir(tmp_path) == ["meta.properties"]


def test_a_list_of_processes_whose_supervisor_is_gone_is_empty(tmp_path: Path) -> None:
    assert read_process_list(str(tmp_path)) == {}
    processes = '{"broker-1": {"pid": 5, "host": "127.0.0.1", "port": 9092}}'
    for supervisor in ("-2000000", '"a"', "null", "2000000000"):
        (tmp_path / PROCESS_LIST).write_text(f'{{"supervisor": {supervisor}, "processes": {processes}}}')
        assert read_process_list(str(tmp_path)) == {}
    (tmp_path / PROCESS_LIST).write_text(f'{{"supervisor": {os.getpid()}, "processes": {processes}}}')
    assert read_process_list(str(tmp_path))["broker-1"]["pid"] == 5


def test_only_its_own_supervisor_removes_a_list(tmp_path: Path) -> None:
    for supervisor, stays in ((1, True), (os.getpid(), False)):
        (tmp_path / PROCESS_LIST).write_text(f'{{"supervisor": {supervisor}, "processes": {{}}}}')
        remove_process_list(str(tmp_path))
        assert (tmp_path / PROCESS_LIST).exists() == stays


def test_the_folder_of_a_running_cluster_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / LAYOUT_FILE).write_text("brokers=3\n")
    lock = lock_folder(str(tmp_path))
    try:
        with pytest.raises(NodeStartError, match="is in use by another process"):
            LocalCluster(str(tmp_path), 3).start()
    finally:
        os.close(lock)
    assert sorted(os.listdir(tmp_path)) == [".lock", LAYOUT_FILE]


def test_two_servers_never_share_the_files_of_a_zookeeper(tmp_path: Path) -> None:
    lock = lock_folder(str(tmp_path))
    try:
        with pytest.raises(ZooKeeperError, match="is in use by another process"):
            ZooKeeperProcess(ZooKeeperPlace(str(tmp_path), "127.0.0.1", 2181)).start()
    finally:
        os.close(lock)


def test_jars_without_zookeeper_are_told(tmp_path: Path) -> None:
    (tmp_path / "slf4j-api-2.jar").touch()
    with pytest.raises(ZooKeeperError, match="has no ZooKeeper"):
        java_command("java", str(tmp_path), "zoo.cfg")
