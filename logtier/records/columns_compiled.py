"""Compilation of the kernels of `columns_kernels`: by numba, once, cached on disk for later processes.

numba caches beside the source or in the user's cache folder, and refuses to define a cached function if it can write to
neither (a read-only installation and a user without a home). A private folder of the user in the system's temporary
folder is used then; if that fails as well, every process compiles for itself.
"""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

__all__ = ["kernel", "private_folder"]

_F = TypeVar("_F", bound=Callable[..., Any])


def kernel(function: _F) -> _F:
    """Compile a function by numba, with a typed decorator, without bounds checks and without Python's lock."""
    try:
        return _compiled(function, cache=True)
    except RuntimeError:  # "no locator available": no writable cache folder
        pass
    folder = private_folder()
    if folder is None:
        return _compiled(function, cache=False)
    numba.config.CACHE_DIR = folder  # type: ignore[attr-defined] # set by numba from its environment variables
    return _compiled(function, cache=True)


def _compiled(function: _F, *, cache: bool) -> _F:
    return cast(_F, numba.njit(cache=cache, nogil=True, boundscheck=False)(function))


def private_folder() -> str | None:
    """Return a temporary folder writable only by this user, since its content is executed; None if there is none."""
    try:
        path = os.path.join(tempfile.gettempdir(), f"headwater-numba-{os.getuid()}")
        os.makedirs(path, mode=0o700, exist_ok=True)
        found = os.lstat(path)
    except OSError:
        return None
    trusted = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o022
    return path if trusted and os.access(path, os.W_OK | os.X_OK) else None
