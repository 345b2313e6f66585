"""Locates the files of conf/: beside the packages in a checkout, inside the package in an installed wheel."""

from __future__ import annotations

import os

import headwater


def conf_file(*parts: str) -> str:
    """Return the path of a file under conf/. Raises FileNotFoundError if this installation has no such file."""
    package = os.path.dirname(os.path.abspath(headwater.__file__))
    installed = os.path.join(package, "conf", *parts)
    checkout = os.path.join(os.path.dirname(os.path.dirname(package)), "conf", *parts)
    for path in (installed, checkout):
        if os.path.isfile(path):
            return path
    raise FileNotFoundError(2, "this installation of headwater lacks a file of conf/", installed)
