"""A target's hidden folder: `<target>/_headwater/`, which Spark, Hive and Delta's VACUUM skip.

target.json            what the folder is the target of; created once
plans/<id>.json        a load's range, before its first row; created once
staged/<attempt>/      files of a load that is not committed yet
commits/<sequence>.json   of a folder of files: the load's manifest, and where its staged files go; created once. This
                       is what makes a load single: of two drivers that saw the same last load, one gets the number
manifests/<id>.json    a load that is done; of one that replaced an earlier load, <id>~<sequence>.json
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from headwater.pipelines.file_systems.file_system import READ_BYTES_MAX, FileSystem, join
from headwater.pipelines.loads.errors import LoadError
from headwater.pipelines.loads.targets.manifest import LoadPlan, Manifest, TargetDescription

__all__ = ["HIDDEN", "Commit", "LoadRecords"]

HIDDEN: Final = "_headwater"
_SEQUENCE_DIGITS: Final = 20
_COMMIT_NAME: Final = re.compile(r"(\d{20})\.json")


@dataclass(frozen=True, slots=True)
class Commit:
    """The decision for a load into a folder of files. `moves`: the staged path of each file, both below the target."""

    manifest: Manifest
    moves: Mapping[str, str]

    def encode(self) -> bytes:
        """The commit as JSON."""
        return json.dumps({"version": 1, "manifest": self.manifest.value(), "moves": dict(self.moves)}).encode()

    @classmethod
    def decode(cls, data: bytes, path: str) -> Commit:
        """The commit in a file. Raises LoadError."""
        try:
            found = json.loads(data)
            moves = {str(final): str(staged) for final, staged in found["moves"].items()}
            return cls(Manifest.decode(json.dumps(found["manifest"]).encode(), path), moves)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise LoadError(f"{path} is no commit of a load: {error}") from error


class LoadRecords:
    """Reads and writes the hidden folder. Raises FileSystemError, and LoadError for files of another form."""

    def __init__(self, files: FileSystem, target: str) -> None:
        self.files = files
        self.target = target
        self.folder = join(target, HIDDEN)

    # -- the target --------------------------------------------------------------------------------------------------

    def description(self) -> TargetDescription | None:
        """What the folder is the target of; None for a new one."""
        path = join(self.folder, "target.json")
        data = self.files.read(path)
        return None if data is None else TargetDescription.decode(data, path)

    def describe(self, description: TargetDescription) -> TargetDescription:
        """Make the folder a target; of two drivers at once, both get the description of the first."""
        self.files.create(join(self.folder, "target.json"), description.encode())
        found = self.description()
        assert found is not None, "a description is never removed"
        return found

    def replace_description(self, description: TargetDescription) -> None:
        """Describe a target in which nothing was loaded yet. The caller holds its lock."""
        self.files.replace(join(self.folder, "target.json"), description.encode())

    # -- plans -------------------------------------------------------------------------------------------------------

    def plan(self, load: str) -> LoadPlan | None:
        """A load's plan, if it has one."""
        path = join(self.folder, "plans", f"{load}.json")
        data = self.files.read(path)
        return None if data is None else LoadPlan.decode(data, path)

    def planned(self) -> list[str]:
        """The names of all loads that have a plan."""
        names = [entry.name for entry in self.files.list(join(self.folder, "plans"))]
        return [name.removesuffix(".json") for name in names if name.endswith(".json")]

    def write_plan(self, plan: LoadPlan) -> LoadPlan:
        """Write a plan down, and return the one that stands: the first."""
        if self.files.create(join(self.folder, "plans", f"{plan.id}.json"), plan.encode()):
            return plan
        found = self.plan(plan.id)
        assert found is not None, "a plan is never removed"
        return found

    # -- staged files ------------------------------------------------------------------------------------------------

    def staged(self, attempt: str) -> str:
        """The folder of an attempt, relative to the target."""
        return f"{HIDDEN}/staged/{attempt}"

    @property
    def staged_folder(self) -> str:
        """The folder of all attempts."""
        return join(self.folder, "staged")

    # -- commits of files --------------------------------------------------------------------------------------------

    def last_sequence(self) -> int:
        """The number of the last commit; 0 for none."""
        names = (entry.name for entry in self.files.list(join(self.folder, "commits")))
        return max((int(found[1]) for name in names if (found := _COMMIT_NAME.fullmatch(name))), default=0)

    def commit(self, sequence: int) -> Commit:
        """A commit by its number. Raises LoadError if it is missing."""
        path = self._commit_path(sequence)
        data = self.files.read(path)
        if data is None:
            raise LoadError(f"{path} is missing: somebody removed a record of {self.target}")
        return Commit.decode(data, path)

    def require_size(self, commit: Commit) -> None:
        """Raise LoadError for a commit that would be too large to be read again."""
        size = len(commit.encode())
        if size > READ_BYTES_MAX:
            raise LoadError(
                f"{len(commit.moves):,} files are too many for one load (its record has {size:,} bytes, at most "
                f"{READ_BYTES_MAX:,} can be read): load a shorter range, or with fewer partition columns"
            )

    def create_commit(self, commit: Commit) -> bool:
        """Commit a load; False if its number is taken."""
        return self.files.create(self._commit_path(commit.manifest.sequence), commit.encode())

    def _commit_path(self, sequence: int) -> str:
        return join(self.folder, "commits", f"{sequence:0{_SEQUENCE_DIGITS}}.json")

    # -- manifests ---------------------------------------------------------------------------------------------------

    def manifest(self, load: str) -> Manifest | None:
        """The manifest of a load, or of the load that replaced it last."""
        last = None
        for entry in self.files.list(join(self.folder, "manifests")):
            name = entry.name.removesuffix(".json")
            if name == load or (name.startswith(f"{load}~") and name.removeprefix(f"{load}~").isdecimal()):
                found = self._manifest(entry.name)
                last = found if last is None or found.sequence > last.sequence else last
        return last

    def manifests(self) -> list[Manifest]:
        """Every load's manifest, in the order of the loads."""
        names = [entry.name for entry in self.files.list(join(self.folder, "manifests"))]
        found = [self._manifest(name) for name in names if name.endswith(".json") and not name.startswith(".")]
        return sorted(found, key=lambda each: each.sequence)

    def _manifest(self, name: str) -> Manifest:
        path = join(self.folder, "manifests", name)
        data = self.files.read(path)
        if data is None:
            raise LoadError(f"{path} is gone while it was read")
        return Manifest.decode(data, path)

    def has_loads(self) -> bool:
        """Whether anything was loaded into the target."""
        return bool(self.last_sequence() or self.files.list(join(self.folder, "manifests")))

    def has_manifest(self, manifest: Manifest) -> bool:
        """Whether a manifest is written."""
        return self.files.entry(self._manifest_path(manifest)) is not None

    def write_manifest(self, manifest: Manifest) -> None:
        """Write a manifest, if it is missing."""
        self.files.create(self._manifest_path(manifest), manifest.encode())

    def _manifest_path(self, manifest: Manifest) -> str:
        return join(self.folder, "manifests", f"{manifest.name}.json")
