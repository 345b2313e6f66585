"""Shipping of Headwater's code to the machines of a cluster: an archive that Spark unpacks beside each executor.

Tasks find the code by `PYTHONPATH`, which names the folder relative to the executor's working directory: the same on
every machine, independent of installed packages. Libraries are not shipped, since they have compiled parts (see
`cluster_check`). Compiled kernels are shipped: numba identifies them by the content of their sources, so a worker with
the driver's processor type compiles nothing.

Files, under the user's cache folder: `headwater/code/<digest>/`, created once for each version of the code, with
`headwater_code/` and its archive. The folder never changes afterwards.
"""

from __future__ import annotations

import glob
import hashlib
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version
from typing import Final

__all__ = ["FOLDER", "ShippedCode", "for_cluster", "is_cluster", "shipped_code"]

#: Headwater's packages that tasks import. Of `headwater` itself only `__init__` is shipped.
PACKAGES: Final = ("headwater.logtier", "headwater.pipelines", "pyspark_headwater")
#: The folder beside an executor.
FOLDER: Final = "headwater_code"
COMPILE_SECONDS_MAX: Final = 300
_DIGEST_CHARS: Final = 20
_WARM: Final = "from headwater.pipelines.datasource.compiled import warm_cache; warm_cache()"


@dataclass(frozen=True, slots=True)
class ShippedCode:
    """The folder of the shipped packages, and its archive."""

    folder: str
    archive: str


def is_cluster(master: str) -> bool:
    """Whether a `spark.master` starts executors other than the driver.

    >>> [is_cluster(master) for master in ("local", "local[2,4]", "spark://m:7077", "yarn", "local-cluster[2,1,1024]")]
    [False, False, True, True, True]
    """
    return master != "local" and not master.startswith("local[")


def for_cluster(given: Mapping[str, str], archive: str) -> dict[str, str]:
    """The Spark settings that ship the code to executors; the user's values of these settings are kept.

    >>> for_cluster({"spark.archives": "env.tar.gz#environment"}, "/c/headwater_code.tar.gz")["spark.archives"]
    'env.tar.gz#environment,file:///c/headwater_code.tar.gz#headwater_code'
    """
    archives = [given["spark.archives"]] if given.get("spark.archives") else []
    paths = [given["spark.executorEnv.PYTHONPATH"]] if given.get("spark.executorEnv.PYTHONPATH") else []
    options = given.get("spark.executor.extraJavaOptions", "")
    if "-Duser.timezone=" not in options:
        options = f"{options} -Duser.timezone=UTC".strip()
    return {
        "spark.archives": ",".join([*archives, f"file://{archive}#{FOLDER}"]),
        "spark.executorEnv.PYTHONPATH": os.pathsep.join([FOLDER, *paths]),
        # As in the driver's own workers: no file beside the executor may shadow the standard library.
        "spark.executorEnv.PYTHONSAFEPATH": "1",
        "spark.executor.extraJavaOptions": options,
    }


def shipped_code() -> ShippedCode:
    """The folder and the archive, created if missing for this version of the code. Raises OSError."""
    sources = dict(_sources())
    root = _root()
    place = os.path.join(root, _digest(sources))
    if not os.path.isdir(place):
        making = tempfile.mkdtemp(prefix="making-", dir=root)
        try:
            _make(making, sources)
            os.rename(making, place)
        except OSError:
            if not os.path.isdir(place):  # otherwise another run created it meanwhile
                raise
        finally:
            shutil.rmtree(making, ignore_errors=True)
    return ShippedCode(os.path.join(place, FOLDER), _archive(place))


def _archive(place: str) -> str:
    return os.path.join(place, f"{FOLDER}.tar.gz")


def _sources() -> Iterator[tuple[str, str]]:
    """Every source file of the packages: its path in the archive, and its path on disk."""
    for parent in sorted({package.rpartition(".")[0] for package in PACKAGES} - {""}):
        above = importlib.util.find_spec(parent)
        assert above is not None
        assert above.origin is not None
        yield os.path.join(parent, "__init__.py"), above.origin
    for package in PACKAGES:
        spec = importlib.util.find_spec(package)
        assert spec is not None
        for folder in spec.submodule_search_locations or ():
            for parent, folders, names in os.walk(folder):
                folders[:] = [name for name in folders if name != "__pycache__"]
                for name in names:
                    if name.endswith(".py"):
                        path = os.path.join(parent, name)
                        yield os.path.join(*package.split("."), os.path.relpath(path, folder)), path


def _digest(sources: Mapping[str, str]) -> str:
    """Digest of the sources, and of the properties that compiled kernels depend on."""
    found = hashlib.sha256()
    for part in (sys.version, platform.machine(), version("numba")):
        found.update(part.encode() + b"\0")
    for name in sorted(sources):
        with open(sources[name], "rb") as file:
            found.update(name.encode() + b"\0" + hashlib.sha256(file.read()).digest())
    return found.hexdigest()[:_DIGEST_CHARS]


def _root() -> str:
    """A persistent folder; a temporary folder if the user has no writable cache folder."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    root = os.path.join(home, "headwater", "code")
    try:
        os.makedirs(root, exist_ok=True)
        if os.access(root, os.W_OK):
            return root
    except OSError:
        pass
    return tempfile.mkdtemp(prefix="headwater-code-")


def _make(place: str, sources: Mapping[str, str]) -> None:
    folder = os.path.join(place, FOLDER)
    for name, path in sources.items():
        target = os.path.join(folder, name)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        shutil.copyfile(path, target)
    _take_compiled(folder, sources)
    _compile(folder)
    with tarfile.open(_archive(place), "w:gz", compresslevel=6) as archive:
        archive.add(folder, arcname=".")
    os.chmod(place, 0o755)  # noqa: S103 - as an installed package; mkdtemp's would be the owner's alone


def _take_compiled(folder: str, sources: Mapping[str, str]) -> None:
    """Copy numba's compiled kernels from beside the sources; numba rejects kernels of other sources or processors."""
    for name, path in sources.items():
        cache = os.path.join(os.path.dirname(path), "__pycache__")
        stem = os.path.basename(path).removesuffix(".py")
        for compiled in glob.glob(os.path.join(glob.escape(cache), f"{stem}.*.nb[ic]")):
            target = os.path.join(folder, os.path.dirname(name), "__pycache__")
            os.makedirs(target, exist_ok=True)
            shutil.copyfile(compiled, os.path.join(target, os.path.basename(compiled)))


def _compile(folder: str) -> None:
    """Fill the kernels' caches beside their sources. After a failure here, a worker compiles for itself."""
    left_out = ("NUMBA_CACHE_DIR", "PYTHONPATH", "PYTHONDONTWRITEBYTECODE")
    environment = {name: value for name, value in os.environ.items() if name not in left_out}
    with suppress(subprocess.SubprocessError, OSError):
        subprocess.run(
            [sys.executable, "-P", "-c", _WARM],
            env=environment | {"PYTHONPATH": folder},
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=COMPILE_SECONDS_MAX,
            check=False,
        )
