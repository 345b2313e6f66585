"""What `headwater doctor` finds, and says to do."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from headwater.cli.shell import checks
from headwater.cli.shell.checks import (
    Check,
    check_disk,
    check_jars,
    check_java,
    check_packages,
    check_port,
    check_python,
    check_settings,
    parse_java_version,
)
from headwater.cli.verbs.doctor import render


def fake_java(folder: Path, version: str) -> None:
    """A java that says its version as the real one does."""
    path = folder / "bin" / "java"
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-04-15' >&2\n")
    path.chmod(0o755)


def test_a_python_that_is_too_old_is_a_problem() -> None:
    assert not check_python((3, 10, 9)).is_ok
    assert check_python((3, 11, 0)).is_ok
    assert check_python((3, 14, 0)).is_ok


@pytest.mark.parametrize(
    ("version", "is_ok"), [("17.0.15", True), ("21", True), ("11.0.2", False), ("1.8.0_392", False)]
)
def test_java_must_be_17_or_newer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, is_ok: bool) -> None:
    fake_java(tmp_path, version)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    found = check_java()
    assert (found.is_ok, version in found.observed) == (is_ok, True)
    assert is_ok or "17" in found.fix


def test_a_java_home_without_java_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert check_java() == Check("java", False, "JAVA_HOME names none", check_java().fix)


def test_no_java_at_all_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert not check_java().is_ok


def test_what_is_no_version_is_none() -> None:
    assert parse_java_version("command not found") is None


def test_the_packages_of_this_environment_are_found() -> None:
    assert all(check.is_ok for check in check_packages())


def test_a_package_that_is_missing_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "PACKAGES", ("no-such-package-here",))
    (check,) = check_packages()
    assert not check.is_ok


def test_jars_are_found_in_sparks_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "SPARK_IVY_FOLDER", str(tmp_path))
    assert not check_jars(may_fetch=False).is_ok
    group, artifact, version = checks.delta_artifact("4.2.0", "4.4.0")
    folder = tmp_path / "cache" / group / artifact / "jars"
    folder.mkdir(parents=True)
    (folder / f"{artifact}-{version}.jar").write_bytes(b"")
    assert check_jars(may_fetch=False).is_ok


def test_a_port_in_use_is_a_problem_and_a_free_one_is_not() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        used = check_port("kafka_port", "127.0.0.1", port)
    assert (used.is_ok, "in use" in used.observed) == (False, True)
    assert check_port("kafka_port", "127.0.0.1", port).is_ok
    assert check_port("kafka_port", "127.0.0.1", 0).is_ok


def test_an_address_that_is_not_of_this_machine_is_a_problem() -> None:
    assert not check_port("http_port", "192.0.2.1", 8082).is_ok


def test_the_data_folder_may_be_made_later(tmp_path: Path) -> None:
    assert check_disk(str(tmp_path / "a" / "b"), free_bytes_min=0).is_ok


def test_a_full_disk_or_a_file_in_place_of_the_folder_is_a_problem(tmp_path: Path) -> None:
    assert not check_disk(str(tmp_path), free_bytes_min=1 << 60).is_ok
    (tmp_path / "file").write_bytes(b"")
    assert not check_disk(str(tmp_path / "file")).is_ok


def test_each_check_is_a_line_and_each_problem_has_a_second_one() -> None:
    text = render([check_settings(None), check_settings("x.yaml:1: unknown setting 'y'")])
    assert text == (
        "STATE    WHAT      FOUND\n"
        "ok       settings  readable\n"
        "PROBLEM  settings  x.yaml:1: unknown setting 'y'\n"
        "         mend it; the checks below use the defaults\n"
    )
