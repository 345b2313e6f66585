"""What users get: the wheel's contents, and licences that go with ours."""

from __future__ import annotations

import importlib.metadata
import itertools
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

#: Those that setup/venv.sh takes.
PYTHONS = ["3.11", "3.12", "3.13", "3.14"]
PERMISSIVE = {
    "0BSD",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "CC0-1.0",
    "ISC",
    "MIT",
    "PSF-2.0",
    "Zlib",
    # Weak copyleft by file: goes with Apache-2.0 as long as the package is used unmodified.
    "MPL-2.0",
}
# Packages from before licence expressions, by what their own metadata says.
OLDER_METADATA = {
    "Apache 2.0": "Apache-2.0",
    "Apache Software License": "Apache-2.0",
    "BSD": "BSD-3-Clause",
    "BSD License": "BSD-3-Clause",
    "BSD 3-Clause License": "BSD-3-Clause",
    "3-Clause BSD License": "BSD-3-Clause",
    "CC0": "CC0-1.0",
    "ISC License": "ISC",
    "MIT License": "MIT",
}
# Not permissive, yet allowed: with the reason.
EXCEPTIONS = {
    # An unmodified shared library, loaded at run time and replaceable by its user, which is what the LGPL asks for.
    "crc32c": "LGPL-2.1-or-later",
}


def runtime_dependencies() -> list[str]:
    """Every package that installing Headwater with its demo brings along, on this machine."""
    seen: set[str] = set()
    todo = ["headwater"]
    while todo:
        parent = todo.pop()
        extras = ["", "demo"] if parent == "headwater" else [""]
        for text in importlib.metadata.requires(parent) or []:
            requirement = Requirement(text)
            wanted = requirement.marker is None or any(requirement.marker.evaluate({"extra": e}) for e in extras)
            name = requirement.name.lower().replace("_", "-")
            if wanted and name not in seen:
                seen.add(name)
                todo.append(name)
    return sorted(seen)


def licences_of(package: str) -> set[str]:
    """The licences a package asks for all of; of alternatives, the first we allow."""
    metadata = importlib.metadata.metadata(package)
    # Typed as a mapping without `get` in Python 3.11.
    fields = {name: metadata[name] for name in metadata}
    if expression := fields.get("License-Expression"):
        licences = set()
        for part in expression.split(" AND "):
            choices = part.strip("() ").split(" OR ")
            licences.add(next((c for c in choices if c in PERMISSIVE), part))
        return licences
    first_line = (fields.get("License") or "").partition("\n")[0].strip()
    classified = [c.rpartition(" :: ")[2] for c in metadata.get_all("Classifier") or [] if c.startswith("License ::")]
    name = first_line or (classified[0] if classified else "unknown")
    return {OLDER_METADATA.get(name, name)}


def test_every_dependency_has_a_licence_that_goes_with_ours() -> None:
    names = runtime_dependencies()
    assert {"pyspark", "kio", "confluent-kafka", "pyarrow"} <= set(names)
    problems = {}
    for name in names:
        licences = licences_of(name)
        if not licences <= PERMISSIVE and licences != {EXCEPTIONS.get(name)}:
            problems[name] = licences
    assert problems == {}


def test_the_licence_is_the_whole_of_apache_2(root: Path) -> None:
    text = (root / "LICENSE").read_text()
    assert "Version 2.0, January 2004" in text
    assert "END OF TERMS AND CONDITIONS" in text
    assert "APPENDIX: How to apply the Apache License to your work." in text
    assert text.rstrip().endswith("limitations under the License.")
    assert len(text) < 11_500, "more than the licence"


def test_pinned_and_declared_dependencies_agree(root: Path) -> None:
    project = tomllib.loads((root / "pyproject.toml").read_text())
    declared = [
        *project["project"]["dependencies"],
        *project["project"]["optional-dependencies"]["demo"],
        *project["dependency-groups"]["dev"],
        *project["build-system"]["requires"],
    ]
    pinned = re.findall(r"^([a-z0-9.-]+==[^\\\n]+)", (root / "requirements.lock").read_text(), re.MULTILINE)
    pins = [Requirement(text) for text in pinned]
    for text, python in itertools.product(declared, PYTHONS):
        requirement = Requirement(text)
        environment = {"python_version": python, "python_full_version": f"{python}.0"}
        if not _applies(requirement, environment):
            continue
        name = canonicalize_name(requirement.name)
        versions = [
            str(pin.specifier).removeprefix("==") for pin in pins if pin.name == name and _applies(pin, environment)
        ]
        assert versions, f"{requirement.name} is not in requirements.lock for Python {python}: make lock"
        assert all(version in requirement.specifier for version in versions), f"{text} against {versions}: make lock"


def _applies(requirement: Requirement, environment: dict[str, str]) -> bool:
    return requirement.marker is None or requirement.marker.evaluate(environment)


@pytest.mark.slow
def test_the_wheel_holds_the_packages_and_conf_and_nothing_else(root: Path, tmp_path: Path) -> None:
    # A copy, so that a build leaves nothing in the tree.
    tree = tmp_path / "tree"
    for name in ("airflow_dags", "api", "conf", "logtier", "pipelines", "platform"):
        shutil.copytree(root / name, tree / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("LICENSE", "README.md", "pyproject.toml"):
        shutil.copy(root / name, tree / name)
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path / "dist")]
    done = subprocess.run(command, cwd=tree, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    [wheel] = (tmp_path / "dist").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    tops = {name.partition("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"headwater", "pyspark_headwater"}
    for folder in ("logtier", "pipelines", "api"):
        for path in (root / folder).rglob("*.py"):
            assert f"headwater/{path.relative_to(root)}" in names
    for folder in ("conf", "airflow_dags"):
        for path in (root / folder).rglob("*"):
            if path.is_file() and path.parent.name != "__pycache__":
                assert f"headwater/{path.relative_to(root)}" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert [name for name in names if "/tests/" in name or name.rpartition("/")[2].startswith("test_")] == []
