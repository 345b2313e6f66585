"""The folder of a cluster on one machine, and what its brokers are started with."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import sys
import threading
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import IO, Any

import pytest

from headwater.cli.main import main
from headwater.cluster_folder import BROKERS_MAX, LAYOUT_FILE, ClusterFolderError, check_folder, stored_brokers
from headwater.cluster_ports import fixed_ports
from headwater.folder_lock import lock_folder
from headwater.local_cluster import LocalCluster
from headwater.process_list import PROCESS_LIST, read_process_list, remove_process_list
from headwater.services import NodeStartError, child_command
from headwater.settings import Settings
from headwater.supervisor import Child, ChildError, RestartPolicy
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


def test_a_large_machine_runs_a_broker_a_core_and_the_help_says_how_several_machines_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["up", "--help"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "a broker uses one core, so that a machine has use for up to one a core" in text
    assert f"[1<=x<={BROKERS_MAX}]" in text
    assert "start each broker with `headwater broker`, up to one a core, and name its machine in broker.rack" in text
    (tmp_path / LAYOUT_FILE).write_text(f"brokers={BROKERS_MAX}\n")
    assert stored_brokers(str(tmp_path)) == BROKERS_MAX == 64
    brokers = LocalCluster(str(tmp_path), BROKERS_MAX, 9092)._brokers
    commands = [child._command(None) for child in brokers.values()]
    ports = [int(command[command.index("--kafka-port") + 1]) for command in commands]
    assert ports == list(range(9092, 9092 + BROKERS_MAX))


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


def test_processes_that_become_ready_at_once_leave_a_whole_list_of_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = LocalCluster(str(tmp_path), 3)
    first, second = cluster._children["broker-1"], cluster._children["broker-2"]
    first_writes, second_is_ready = threading.Event(), threading.Event()
    dump = json.dump

    def dump_late(value: object, file: IO[str]) -> None:
        if not first_writes.is_set():
            first_writes.set()
            # The second one has written its list by now, or waits for its turn.
            second_is_ready.wait(0.3)
        dump(value, file)

    def become_ready(child: Child) -> None:
        child.addresses = {"host": "127.0.0.1", "port": 9092}
        child._on_ready()

    def become_ready_second() -> None:
        become_ready(second)
        second_is_ready.set()

    monkeypatch.setattr(json, "dump", dump_late)
    threads = [threading.Thread(target=become_ready, args=(first,)), threading.Thread(target=become_ready_second)]
    threads[0].start()
    assert first_writes.wait(60)
    threads[1].start()
    for thread in threads:
        thread.join()
    assert set(read_process_list(str(tmp_path))) == {"broker-1", "broker-2"}


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


def test_the_brokers_take_the_ports_that_follow_the_first(tmp_path: Path) -> None:
    ports = fixed_ports((1, 2, 3), 9092, 8082, 9404)
    assert [each.port for each in ports] == [9092, 9093, 9094, 9404, 9405, 9406, 8082]
    assert ports[4].use == "the metrics port of broker 2"
    assert fixed_ports((1, 2, 3), 0, 0, -1) == []
    assert [each.port for each in fixed_ports((1, 2, 3), 65_533, 0, 0)] == [65_533, 65_534, 65_535]
    commands = [child._command(None) for child in LocalCluster(str(tmp_path), 3, 9092)._brokers.values()]
    assert [each[each.index("--kafka-port") + 1] for each in commands] == ["9092", "9093", "9094"]


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (["--kafka-port", "65534"], "the port of broker 3 would be 65536, but 65535 is the last; lower --kafka-port"),
        (
            ["--metrics-port", "65535"],
            "the metrics port of broker 2 would be 65536, but 65535 is the last; lower --metrics-port",
        ),
        (
            ["--kafka-port", "80", "--http-port", "82"],
            "82 would be the port of broker 3 and the port of the REST API; choose another --kafka-port or --http-port",
        ),
    ],
)
def test_ports_that_do_not_exist_or_have_two_uses_are_refused_with_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], line: str
) -> None:
    folder = tmp_path / "data"
    assert main(["up", "--brokers", "3", "--data", str(folder), *options]) == 2
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", f"headwater: up: {line}\n")
    assert not folder.exists()


def three_ports_whose_middle_one_is_taken() -> tuple[socket.socket, int]:
    """A listening socket, and the port before its own, which is free as the one after it."""
    while True:
        taken = socket.create_server(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        try:
            for neighbour in (port - 1, port + 1):
                socket.create_server(("127.0.0.1", neighbour)).close()
        except (OSError, OverflowError):
            taken.close()
        else:
            return taken, port - 1


def test_a_port_in_use_ends_the_start_before_a_process_runs(tmp_path: Path) -> None:
    taken, first = three_ports_whose_middle_one_is_taken()
    cluster = LocalCluster(str(tmp_path), 3, first)
    with taken, pytest.raises(NodeStartError) as caught:
        cluster.start()
    assert str(caught.value) == (
        f"127.0.0.1:{first + 1}, the port of broker 2, is in use; stop the process that listens there, or choose "
        "another --kafka-port"
    )
    assert set(cluster.pids.values()) == {None}
    assert os.listdir(tmp_path) == [".lock"]
    os.close(lock_folder(str(tmp_path)))


#: Fails as often as a file has lines, with the last of them, and is ready then, until its supervisor is gone.
FAILS_AT_FIRST = """
import json, os, sys
path, ready_fd, parent_fd = sys.argv[1], int(sys.argv[3]), int(sys.argv[5])
left = open(path).read().splitlines()
answer = {"error": left.pop(), "exit_code": 1} if left else {"ready": {"host": "h", "port": 1}}
failed = "error" in answer
if failed and "options" in answer["error"]:
    answer["exit_code"] = 2
open(path, "w").write("".join(line + "\\n" for line in left))
os.write(ready_fd, json.dumps(answer).encode() + b"\\n")
if failed:
    sys.exit(answer["exit_code"])
os.read(parent_fd, 1)
"""


def failing_command(failures: Path, _known: Mapping[str, Any] | None) -> list[str]:
    return [sys.executable, "-I", "-S", "-c", FAILS_AT_FIRST, str(failures)]


def failing_child(failures: Path, *reasons: str, report: Callable[[str], None], on_ready: Callable[[], None]) -> Child:
    failures.write_text("".join(f"{reason}\n" for reason in reversed(reasons)))
    child = Child(
        "broker 2",
        partial(failing_command, failures),
        RestartPolicy(attempts_max=None, backoff_ms=1, backoff_max_ms=4, healthy_after_ms=60_000),
        start_timeout_ms=30_000,
        stop_timeout_ms=30_000,
        report=report,
        on_ready=on_ready,
    )
    child.start()
    return child


def test_a_process_that_does_not_start_is_reported_once_for_each_reason_and_tried_until_it_runs(
    tmp_path: Path,
) -> None:
    lines: list[str] = []
    ready = threading.Event()
    reasons = ["no disk"] * 3 + ["wrong options"]
    child = failing_child(tmp_path / "failures", *reasons, report=lines.append, on_ready=ready.set)
    with pytest.raises(ChildError, match="no disk") as caught:
        child.wait_ready(lambda: None)
    assert not caught.value.is_user_error
    child.keep_starting(caught.value, lambda: None)
    try:
        assert ready.wait(60)
        assert child.addresses == {"host": "h", "port": 1}
        assert lines == [
            "broker 2 did not start: no disk; it is tried again after a pause of at most 4 ms",
            "broker 2 did not start: wrong options; it is tried again after a pause of at most 4 ms",
            "broker 2 is running",
        ]
    finally:
        child.stop()
    assert child.pid is None


#: Ignores SIGTERM, and is never ready.
HANGS = "import signal, threading; signal.signal(signal.SIGTERM, signal.SIG_IGN); threading.Event().wait()"


def own_child(code: str, *, start_timeout_ms: int, report: Callable[[str], None]) -> Child:
    return Child(
        "broker 2",
        lambda _known: [sys.executable, "-I", "-S", "-c", code],
        RestartPolicy(attempts_max=None, backoff_ms=600_000, backoff_max_ms=600_000, healthy_after_ms=60_000),
        start_timeout_ms=start_timeout_ms,
        stop_timeout_ms=500,
        report=report,
    )


def test_a_failed_process_ends_while_others_are_waited_for() -> None:
    lines: list[str] = []
    child = own_child(HANGS, start_timeout_ms=300, report=lines.append)
    child.start()
    try:
        with pytest.raises(ChildError, match="is not ready after 300 ms") as caught:
            child.wait_ready(lambda: None)
        assert child.pid is not None
        process = child._process
        assert process is not None
        child.keep_starting(caught.value, lambda: None)
        assert process.wait(60) == -signal.SIGKILL
        assert len(lines) == 1
    finally:
        child.stop()
    assert child.pid is None


#: Is ready at once, until its supervisor is gone.
IS_READY = """
import os, sys
os.write(int(sys.argv[2]), b'{"ready": {"host": "h", "port": 1}}\\n')
os.read(int(sys.argv[4]), 1)
"""


def test_the_time_of_a_start_runs_from_the_start_and_not_from_the_wait() -> None:
    child = own_child(HANGS, start_timeout_ms=60_000, report=lambda _line: None)
    child.start()
    before_s = child._deadline_s
    try:
        child._deadline_s -= 60_000  # as if the one before it had taken all the time
        with pytest.raises(ChildError, match="is not ready after 60000 ms"):
            child.wait_ready(lambda: None)
        child.tell({"bootstrap_servers": "h:1"})
        assert child._deadline_s >= before_s  # what waited for the line starts with it
    finally:
        child.stop()


def test_a_process_that_was_ready_in_time_is_so_when_its_line_is_read_late() -> None:
    child = own_child(IS_READY, start_timeout_ms=60_000, report=lambda _line: None)
    child.start()
    try:
        assert child._ready_fd is not None
        assert select.select([child._ready_fd], [], [], 60)[0]
        child._deadline_s -= 60_000
        assert child.wait_ready(lambda: None) == {"host": "h", "port": 1}
    finally:
        child.stop()


def test_wrong_options_of_a_process_are_the_users_error(tmp_path: Path) -> None:
    lines: list[str] = []
    child = failing_child(tmp_path / "failures", "wrong options", report=lines.append, on_ready=lambda: None)
    with pytest.raises(ChildError) as caught:
        child.wait_ready(lambda: None)
    child.stop()
    assert caught.value.is_user_error
    assert lines == []


def cluster_of(folder: Path, failures: Path, *failing: str, lines: list[str]) -> LocalCluster:
    """A cluster of three brokers whose processes are ready at once, except those that fail."""
    settings = Settings(restart_backoff_ms=600_000, restart_backoff_max_ms=600_000)
    cluster = LocalCluster(str(folder), 3, settings=settings, report=lines.append)
    failures.mkdir(exist_ok=True)
    for name, child in cluster._children.items():
        path = failures / name
        path.write_text("no disk\n" if name in failing else "")
        child._command = partial(failing_command, path)
    return cluster


def test_a_folder_is_new_until_all_its_brokers_have_been_ready_at_one_start(tmp_path: Path) -> None:
    folder, failures = tmp_path / "data", tmp_path / "failures"
    lines: list[str] = []
    for _ in range(2):
        with pytest.raises(NodeStartError, match="no disk"):
            cluster_of(folder, failures, "broker-2", lines=lines).start()
    for failing in ((), ("broker-2",)):
        assert lines == []
        cluster = cluster_of(folder, failures, *failing, lines=lines)
        try:
            cluster.start()
        finally:
            cluster.stop()
    assert len(lines) == 1
    assert lines[0].startswith("broker 2 did not start: no disk; it is tried again")


#: Reports wrong options, and does not end.
ENDS_SLOWLY = """
import os, sys, threading
os.write(int(sys.argv[2]), b'{"error": "wrong options", "exit_code": 2}\\n')
threading.Event().wait()
"""


def test_wrong_options_are_the_users_error_before_the_process_has_ended() -> None:
    child = own_child(ENDS_SLOWLY, start_timeout_ms=60_000, report=lambda _line: None)
    child.start()
    try:
        with pytest.raises(ChildError, match="wrong options") as caught:
            child.wait_ready(lambda: None)
        assert caught.value.is_user_error
        assert child.pid is not None
    finally:
        child.stop()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "reason"),
    [
        (["broker", "--set", "node.id=none"], "node.id"),
        (["zookeeper", "--port", "1", "--jaas", "missing"], "missing is not there"),
        (["api", "--host", "256.0.0.1", "--http-port", "0"], "256.0.0.1"),
    ],
)
def test_each_process_reports_the_users_error_as_one(command: list[str], reason: str) -> None:
    child = Child(
        command[0],
        lambda _known: child_command(*command),
        RestartPolicy(attempts_max=0, backoff_ms=1, backoff_max_ms=1, healthy_after_ms=1),
        start_timeout_ms=60_000,
        stop_timeout_ms=60_000,
        report=lambda _line: None,
    )
    child.start()
    try:
        with pytest.raises(ChildError, match=reason) as caught:
            child.wait_ready(lambda: None)
        assert child._process is not None
        assert caught.value.is_user_error == (child._process.wait(60) == 2)
        assert caught.value.is_user_error
    finally:
        child.stop()


@pytest.mark.parametrize(
    ("is_new", "failing", "outcome"),
    [
        (False, {2: ChildError("no disk")}, ["broker 2 is tried again"]),
        (
            False,
            {1: ChildError("no disk"), 3: ChildError("no folder")},
            ["broker 1 is tried again", "broker 3 is tried again"],
        ),
        (True, {2: ChildError("no disk")}, ["no disk"]),
        (False, {2: ChildError("wrong", is_user_error=True)}, ["wrong"]),
        (False, {1: ChildError("no disk"), 2: ChildError("wrong", is_user_error=True)}, ["wrong"]),
        (False, {each: ChildError(f"{each}") for each in (1, 2, 3)}, ["1"]),
    ],
)
def test_a_broker_alone_that_fails_is_tried_again_and_a_fault_of_all_ends_the_start(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    is_new: bool,
    failing: Mapping[int, ChildError],
    outcome: list[str],
) -> None:
    tried: list[str] = []
    failures = {f"broker {node_id}": error for node_id, error in failing.items()}

    def wait_ready(child: Child, _on_give_up: Callable[[], None]) -> None:
        if (failure := failures.get(child.name)) is not None:
            raise failure

    def keep_starting(child: Child, failure: ChildError, _on_give_up: Callable[[], None]) -> None:
        assert failure is failures[child.name]
        tried.append(f"{child.name} is tried again")

    monkeypatch.setattr(Child, "wait_ready", wait_ready)
    monkeypatch.setattr(Child, "keep_starting", keep_starting)
    try:
        LocalCluster(str(tmp_path), 3)._await_brokers(is_new=is_new)
    except ChildError as error:
        assert tried == []
        tried.append(str(error))
    assert tried == outcome
