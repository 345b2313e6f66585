"""Kafka's own Java programs, as its users run them."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import pytest

from tests.jars import fetched, java_program

VERSION = "4.1.1"
LIMIT_S = 120
#: What a JVM says of the archive of classes goes to standard output.
QUIET_ARCHIVE = ("-Xlog:cds=off", "-Xlog:cds+dynamic=off")


class KafkaTool(Protocol):
    """Runs the main class of a tool and returns what it printed; fails when it does not end well."""

    def __call__(self, main: str, *arguments: str, stdin: str = "", limit_s: float = LIMIT_S, ends: int = 0) -> str: ...


@pytest.fixture(scope="session")
def kafka_jars() -> Path:
    return fetched(
        f"kafka-{VERSION}",
        [("org.apache.kafka", "kafka_2.13", VERSION), ("org.apache.kafka", "kafka-tools", VERSION)],
    )


@pytest.fixture(scope="session")
def kafka_tool(kafka_jars: Path, tmp_path_factory: pytest.TempPathFactory) -> KafkaTool:
    """The first tool archives the classes that it loads, and later ones map them: half of a tool's processor time."""
    archive = tmp_path_factory.mktemp("kafka_tools") / "classes.jsa"

    def run(main: str, *arguments: str, stdin: str = "", limit_s: float = LIMIT_S, ends: int = 0) -> str:
        use = "SharedArchiveFile" if archive.exists() else "ArchiveClassesAtExit"
        options = [f"-XX:{use}={archive}", *QUIET_ARCHIVE]
        class_path = [str(kafka_jars / "*")]
        return run_java(class_path, main, arguments, options=options, stdin=stdin, limit_s=limit_s, ends=ends)

    return run


def run_java(
    class_path: Sequence[str],
    main: str,
    arguments: Sequence[str],
    *,
    options: Sequence[str] = (),
    stdin: str = "",
    limit_s: float = LIMIT_S,
    ends: int = 0,
) -> str:
    """Standard output and, after it, standard error."""
    command = java_program(class_path, main, *arguments, options=options)
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=limit_s, check=False)
    assert done.returncode == ends, (
        f"{main} ended with {done.returncode}:\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    )
    return done.stdout + done.stderr
