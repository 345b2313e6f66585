"""Jars from Maven Central by the Ivy inside the pyspark wheel: fetched once, into the user's cache folder.

One process fetches at a time: two Ivys that download the same file into one cache take its parts away from each other.
The cache is ours: Ivy's own is in the home that the password file names, which an empty HOME does not change.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyspark

FETCH_S = 900
SPARK_JARS = Path(pyspark.__file__).parent / "jars"


class FetchError(RuntimeError):
    """A jar could not be fetched; the text holds the end of what Ivy said."""


def java() -> str:
    """The java command: JAVA_HOME's, else the one on PATH."""
    home = os.environ.get("JAVA_HOME")
    return str(Path(home, "bin", "java")) if home else "java"


def java_program(class_path: Sequence[str], main: str, *arguments: str, options: Sequence[str] = ()) -> list[str]:
    """The command of a program that is small, or ends soon: little heap, and no compiler that takes its time."""
    small = ("-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
    return [java(), *small, *options, "-cp", ":".join(class_path), main, *arguments]


def fetched(name: str, artifacts: Sequence[tuple[str, str, str]], *, transitive: bool = True) -> Path:
    """The folder `name` with the jars of (organisation, artifact, version) and, if `transitive`, all that they need."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "headwater"
    folder = cache / name
    if folder.exists():
        return folder
    with _alone(cache):
        if folder.exists():  # somebody else was faster
            return folder
        print(f"fetching {', '.join(artifact for _, artifact, _ in artifacts)} into {folder}", file=sys.stderr)
        work = cache / f"{name}.{os.getpid()}"
        work.mkdir()
        try:
            for artifact in artifacts:
                _retrieve(artifact, work, cache / "ivy", transitive)
            for extra in (*work.glob("*-sources.jar"), *work.glob("*-javadoc.jar")):
                extra.unlink()
            work.rename(folder)
        finally:
            shutil.rmtree(work, ignore_errors=True)
    return folder


def _retrieve(coordinates: tuple[str, str, str], work: Path, ivy_cache: Path, transitive: bool) -> None:
    organisation, artifact, version = coordinates
    [ivy] = SPARK_JARS.glob("ivy-*.jar")
    command = [java(), "-jar", str(ivy), "-cache", str(ivy_cache), "-dependency", organisation, artifact, version]
    command += [] if transitive else ["-notransitive"]
    # Without the classifier, the sources would take the place of the jar.
    command += ["-retrieve", f"{work}/[artifact]-[revision](-[classifier]).[ext]"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=FETCH_S, check=False)
    if done.returncode or not (work / f"{artifact}-{version}.jar").exists():
        raise FetchError(f"Ivy could not fetch {artifact} {version}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")


@contextmanager
def _alone(cache: Path) -> Iterator[None]:
    """Wait until no other process fetches into the cache; a process that dies lets the next one in."""
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "ivy.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
