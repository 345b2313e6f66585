"""The checks of `headwater doctor`; each reports its result and, if it failed, a correction."""

from __future__ import annotations

import errno
import glob
import importlib.metadata
import os
import re
import shutil
import socket
import subprocess
import sys
from dataclasses import dataclass
from typing import Final

from headwater.cli.shell.errors import EXIT_FAILED, CliError
from headwater.java_runtime import find_java

PYTHON_MIN: Final = (3, 11)
JAVA_MIN: Final = 17
DISK_FREE_BYTES_MIN: Final = 1 << 30
COMMAND_TIMEOUT_S: Final = 20
FETCH_TIMEOUT_S: Final = 180
FETCH_CONFS: Final = "master,runtime"
"""The jar itself and its runtime dependencies; without this, Ivy also fetches test and optional jars."""
PACKAGES: Final = ("pyspark", "delta-spark", "pyarrow", "confluent-kafka", "kio")
"""Packages whose versions must match."""

SCALA: Final = "2.13"
SPARK_IVY_FOLDER: Final = "~/.ivy2.5.2"
"""Spark 4's folder for fetched jars (its default of `spark.jars.ivy`), whatever the version of its Ivy jar."""


@dataclass(frozen=True, slots=True)
class Check:
    """The result of one check; `fix` is empty if the check passed."""

    name: str
    is_ok: bool
    observed: str
    fix: str = ""


def check_settings(problem: str | None) -> Check:
    """Report whether the settings file and the environment are valid."""
    if problem is None:
        return Check("settings", True, "readable")
    return Check("settings", False, problem, "mend it; the checks below use the defaults")


def check_python(version: tuple[int, int, int] = sys.version_info[:3]) -> Check:
    """Check the interpreter's version."""
    found = ".".join(map(str, version))
    if version[:2] >= PYTHON_MIN:
        return Check("python", True, found)
    return Check("python", False, found, "install Python 3.11 or newer and make the environment again")


def parse_java_version(output: str) -> tuple[int, str] | None:
    """Return the major version in the output of `java -version`.

    >>> parse_java_version('openjdk version "17.0.15" 2025-04-15')
    (17, '17.0.15')
    >>> parse_java_version('java version "1.8.0_392"')
    (8, '1.8.0_392')
    """
    match = re.search(r'version "((?:1\.)?(\d+)[^"]*)"', output)
    return (int(match[2]), match[1]) if match else None


def check_java() -> Check:
    """Check for a Java version that Spark supports."""
    install = "install one (Debian and Ubuntu: apt install openjdk-17-jre-headless) or set JAVA_HOME"
    java = find_java()
    if java is None:
        where = "JAVA_HOME names none" if os.environ.get("JAVA_HOME") else "none on PATH"
        return Check("java", False, where, f"Spark needs Java {JAVA_MIN} or newer: {install}")
    try:
        answer = subprocess.run(
            [java, "-version"], check=False, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return Check("java", False, f"{java} does not run: {error}", install)
    version = parse_java_version(answer.stderr + answer.stdout)
    if version is None:
        return Check("java", False, f"{java} does not say its version", install)
    if version[0] < JAVA_MIN:
        return Check("java", False, f"{version[1]} at {java}", f"Spark needs Java {JAVA_MIN} or newer: {install}")
    return Check("java", True, f"{version[1]} at {java}")


def check_packages() -> list[Check]:
    """Check that the required packages are installed in this environment."""
    checks = []
    for name in PACKAGES:
        version = _version(name)
        if version is None:
            checks.append(Check(name, False, "not installed", "install Headwater again: pip install headwater"))
        else:
            checks.append(Check(name, True, version))
    return checks


def delta_artifact(pyspark: str, delta: str) -> tuple[str, str, str]:
    """Return the coordinates of the jar for these versions: group, artifact, version.

    >>> delta_artifact("4.2.0", "4.4.0")
    ('io.delta', 'delta-spark_4.2_2.13', '4.4.0')
    """
    major_minor = ".".join(pyspark.split(".")[:2])
    return "io.delta", f"delta-spark_{major_minor}_{SCALA}", delta


def check_jars(*, may_fetch: bool) -> Check:
    """Check that Delta's jars are in Spark's cache; fetch missing jars if allowed, as the first pipeline would."""
    pyspark, delta = _version("pyspark"), _version("delta-spark")
    if pyspark is None or delta is None:
        return Check("delta jars", False, "unknown without pyspark and delta-spark", "install the packages above first")
    group, artifact, version = delta_artifact(pyspark, delta)
    folder = os.path.expanduser(SPARK_IVY_FOLDER)
    if _cached(folder, group, artifact, version):
        return Check("delta jars", True, f"{artifact} {version} in {folder}")
    if not may_fetch:
        return Check(
            "delta jars",
            False,
            f"{artifact} {version} is not in {folder}",
            "run `headwater doctor` with a network once",
        )
    reason = _fetch(folder, group, artifact, version)
    if reason is None and _cached(folder, group, artifact, version):
        return Check("delta jars", True, f"{artifact} {version} fetched into {folder}")
    return Check(
        "delta jars",
        False,
        f"{artifact} {version} cannot be fetched: {reason or 'nothing arrived'}",
        "Spark fetches them from Maven Central: check the network, or JAVA_TOOL_OPTIONS=-Dhttps.proxyHost=...",
    )


def check_port(name: str, host: str, port: int) -> Check:
    """Check that a port can be bound."""
    where = f"{name} {port}"
    if port == 0:
        return Check(where, True, "any free port")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            # As the servers do it: an old connection in TIME_WAIT does not count.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return Check(where, False, f"in use on {host}", f"stop what uses it, or set {name} to another port or 0")
        return Check(
            where, False, f"cannot be bound on {host}: {error.strerror}", f"set host or {name} to another value"
        )
    return Check(where, True, f"free on {host}")


def check_disk(data_dir: str, free_bytes_min: int = DISK_FREE_BYTES_MIN) -> Check:
    """Check that the data folder, or its nearest existing parent, is writable and has free space."""
    folder = os.path.abspath(data_dir)
    while not os.path.exists(folder):
        folder = os.path.dirname(folder)
    name = f"data folder {data_dir}"
    if not os.path.isdir(folder):
        return Check(name, False, f"{folder} is a file", "set data_dir to a folder")
    if not os.access(folder, os.W_OK | os.X_OK):
        return Check(
            name, False, f"{folder} is not writable", "change its permissions, or set data_dir to another folder"
        )
    free_bytes = shutil.disk_usage(folder).free
    found = f"{free_bytes / (1 << 30):.1f} GiB free"
    if free_bytes < free_bytes_min:
        return Check(name, False, found, f"free some space: less than {free_bytes_min >> 20} MiB fills up soon")
    return Check(name, True, found)


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _ivy_jar() -> str | None:
    # The package's folder without importing it: pyspark takes a second.
    import importlib.util

    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        return None
    found = sorted(glob.glob(os.path.join(glob.escape(os.path.dirname(spec.origin)), "jars", "ivy-*.jar")))
    return found[-1] if found else None


def _cached(folder: str, group: str, artifact: str, version: str) -> bool:
    cache = os.path.join(folder, "cache", group, artifact, "jars", f"{artifact}-{version}.jar")
    return os.path.isfile(cache) or os.path.isfile(os.path.join(folder, "jars", f"{group}_{artifact}-{version}.jar"))


def _fetch(folder: str, group: str, artifact: str, version: str) -> str | None:
    """Fetch an artifact with its dependencies into Spark's cache using Ivy; return an error, or None."""
    java, jar = find_java(), _ivy_jar()
    if java is None or jar is None:
        return "there is no Java to run Ivy with"
    command = [java, "-jar", jar, "-cache", os.path.join(folder, "cache"), "-dependency"]
    command += [group, artifact, version, "-confs", FETCH_CONFS]
    try:
        answer = subprocess.run(command, check=False, capture_output=True, text=True, timeout=FETCH_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return f"no answer within {FETCH_TIMEOUT_S} s"
    if answer.returncode == 0:
        return None
    # Ivy explains itself over many lines; those with a reason begin so.
    lines = [line.strip() for line in (answer.stdout + answer.stderr).splitlines()]
    reasons = [line for line in lines if "UNRESOLVED" in line or "Exception" in line or "Server access" in line]
    return (reasons or lines or ["Ivy gave no reason"])[-1][:200]


def require_java() -> None:
    """End the command if Spark cannot start: Spark's own message does not explain the cause."""
    check = check_java()
    if not check.is_ok:
        raise CliError("Java", check.observed, check.fix, exit_code=EXIT_FAILED)
