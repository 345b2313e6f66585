"""Where compiled kernels are cached when the usual places cannot be written."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from headwater.logtier.records.columns_compiled import private_folder


def test_the_private_folder_is_made_for_its_user_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))
    folder = private_folder()
    assert folder is not None
    assert os.stat(folder).st_mode & 0o777 == 0o700
    assert private_folder() == folder


@pytest.mark.parametrize("kind", ["open to others", "a link", "a file"])
def test_a_cache_folder_that_others_may_have_made_is_not_run_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))
    path = tmp_path / f"headwater-numba-{os.getuid()}"
    if kind == "a file":
        path.touch()
    elif kind == "a link":
        (tmp_path / "elsewhere").mkdir(mode=0o700)
        path.symlink_to(tmp_path / "elsewhere")
    else:
        path.mkdir()
        path.chmod(0o777)
    assert private_folder() is None


PROGRAM = """
import numba.core.caching as caching
from headwater.logtier.records.columns_compiled import kernel

class Nowhere:
    @classmethod
    def from_function(cls, function, file):
        return None

# As root every folder can be written: numba's other places are taken away instead.
caching.CacheImpl._locator_classes = [caching.UserProvidedCacheLocator, Nowhere]

@kernel
def twice(x):
    return 2 * x

assert twice(21) == 42
"""


@pytest.mark.slow
def test_a_read_only_installation_and_no_home_still_compile_and_cache(tmp_path: Path) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    environment = {k: v for k, v in os.environ.items() if k not in ("NUMBA_CACHE_DIR", "HOME")}
    environment |= {"HOME": "", "TMPDIR": str(temporary)}
    subprocess.run([sys.executable, str(program)], check=True, env=environment, timeout=120)
    assert list(temporary.rglob("*.nbi")), "the compiled function is cached"
    shutil.rmtree(temporary)
    # Not even a temporary folder: it compiles without a cache.
    environment["TMPDIR"] = str(temporary)
    (tmp_path / "other").mkdir()
    program.write_text(
        PROGRAM.replace(
            "@kernel",
            "import headwater.logtier.records.columns_compiled as c\nc.private_folder = lambda: None\n\n@kernel",
        )
    )
    subprocess.run([sys.executable, str(program)], check=True, env=environment, timeout=120, cwd=tmp_path / "other")
