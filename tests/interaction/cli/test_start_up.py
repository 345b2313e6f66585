"""What the command line imports: `--help` must be quick, no verb pays for another, and a node starts at once."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterable
from contextlib import closing
from typing import Any

import pytest

pytestmark = pytest.mark.slow

WAIT_S = 60
ADDRESS = re.compile(r"127\.0\.0\.1:(\d+)")
#: ApiVersions v0: correlation id 7, client id "first".
API_VERSIONS_REQUEST = bytes.fromhex("0000000f 0012 0000 00000007 0005") + b"first"
HEAVY = ("pyspark", "numba", "pandas", "pyarrow", "pydantic", "fastapi", "typer", "rich", "confluent_kafka", "numpy")


def imported(alone: Any, *arguments: str) -> set[str]:
    """Top-level modules that a command has imported when it ends."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "headwater", *arguments],
        capture_output=True, text=True, cwd=alone.folder, env=alone.environment, timeout=60, check=True,
    )  # fmt: skip
    return {module.partition(".")[0] for module in modules(done.stderr)}


def modules(importtime: str) -> set[str]:
    """The modules that Python's `-X importtime` told of."""
    lines = [line for line in importtime.splitlines() if line.startswith("import time:")]
    return {line.rpartition("|")[2].strip() for line in lines}


def imported_by_server(alone: Any, arguments: Iterable[str], ask: Any) -> set[str]:
    """The modules of a process that has become ready, was asked something and has ended.

    A package is among them under its own name; a module of it that was looked for in vain may be, too.
    """
    log = alone.folder / "stderr.txt"
    with log.open("wb") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-X", "importtime", "-m", "headwater", *arguments],
            stdout=subprocess.PIPE, stderr=stderr, text=True, cwd=alone.folder, env=alone.environment,
        )  # fmt: skip
        with process:
            try:
                assert process.stdout is not None
                found = ADDRESS.search(process.stdout.readline())
                assert found is not None, log.read_text()[-2000:]
                ask(int(found[1]))
            finally:
                process.send_signal(signal.SIGTERM)
                process.wait(WAIT_S)
    return modules(log.read_text())


@pytest.mark.parametrize("arguments", [("--help",), ("version",), ("up", "--help"), ("topic", "--help")])
def test_help_imports_nothing_heavy(alone: Any, arguments: tuple[str, ...]) -> None:
    assert imported(alone, *arguments).isdisjoint(HEAVY)


def test_the_help_of_the_root_imports_no_verb(alone: Any) -> None:
    assert imported(alone, "--help").isdisjoint({"api", "pipelines", "logtier", "yaml", "asyncio"})


def test_a_broker_imports_nothing_heavy_and_of_messages_only_what_clients_asked(alone: Any) -> None:
    def ask(port: int) -> None:
        with closing(socket.create_connection(("127.0.0.1", port), WAIT_S)) as connection:
            connection.sendall(API_VERSIONS_REQUEST)
            assert connection.recv(4) != b""

    found = imported_by_server(alone, ["broker", "--data", "data", "--kafka-port", "0"], ask)
    needed_by_some = {"hypothesis", "jwt", "cryptography", "prometheus_client", "yaml"}
    assert "headwater.logtier.broker" in found
    assert not found & {*HEAVY, *needed_by_some}
    versions = {module.split(".")[3] for module in found if module.startswith("kio.schema.api_versions.v")}
    # The version that was asked for, and the newest one, which has the names of all fields.
    assert versions == {"v0", "v4"}


def test_the_rest_api_imports_neither_broker_nor_spark(alone: Any) -> None:
    def ask(port: int) -> None:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/openapi.json", timeout=WAIT_S) as answer:
            assert "paths" in json.load(answer)

    found = imported_by_server(alone, ["api", "--http-port", "0", "--bootstrap-servers", "127.0.0.1:1"], ask)
    expected = {"fastapi", "pydantic"}
    assert expected <= found
    assert not found & ({*HEAVY, "kio", "hypothesis", "cryptography", "yaml"} - expected)
    assert not {
        module
        for module in found
        if module.startswith(("headwater.logtier.broker", "headwater.logtier.log", "headwater.logtier.client"))
    }
