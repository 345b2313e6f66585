"""The state of the registry, built from the records of the topic; pure.

The topic is authoritative: a change is a record, written and read back. Every reader of the topic, a Confluent registry
included, therefore arrives at the same state.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TypeVar

from headwater.api.registry.model import DEFAULT_CONFIG, DEFAULT_MODE, Config, Mode, SchemaVersion
from headwater.api.registry.record_codec import (
    ClearSubjectRecord,
    ConfigRecord,
    DeleteSubjectRecord,
    ModeRecord,
    NoopRecord,
    Record,
    SchemaRecord,
)

T = TypeVar("T")


class RegistryState:
    """Subjects with their versions, ids, configs and modes.

    Invariant: `ids` maps the id of every version, soft-deleted versions included, and `digests` is its inverse; a
    subject without versions is not in `subjects`. Not thread-safe: threads share a lock or a `snapshot`. Inner
    dictionaries are replaced, never changed, so a snapshot copies the outer dictionaries only.
    """

    def __init__(self) -> None:
        self.subjects: dict[str, dict[int, SchemaVersion]] = {}
        self.digests: dict[bytes, int] = {}
        self.ids: dict[int, dict[tuple[str, int], SchemaVersion]] = {}
        self.id_max = 0
        self._configs: dict[str | None, Config] = {}
        self._modes: dict[str | None, Mode] = {}

    def snapshot(self) -> RegistryState:
        """Return a copy that later records do not affect."""
        copy = RegistryState()
        copy.subjects = dict(self.subjects)
        copy.digests = dict(self.digests)
        copy.ids = dict(self.ids)
        copy.id_max = self.id_max
        copy._configs = dict(self._configs)
        copy._modes = dict(self._modes)
        return copy

    def apply(self, record: Record) -> None:
        """Apply the next record of the topic."""
        match record:
            case SchemaRecord(subject, version, None):
                self._remove(subject, version)
            case SchemaRecord(_, _, SchemaVersion() as value):
                self._put(value)
            case DeleteSubjectRecord(subject, last):
                for value in list(self.subjects.get(subject, {}).values()):
                    if value.version <= last and not value.deleted:
                        self._put(replace(value, deleted=True))
            case ClearSubjectRecord(subject):
                for value in list(self.versions_of_all()):
                    if value.deleted and subject in (None, value.subject):
                        self._remove(value.subject, value.version)
            case ConfigRecord(subject, config):
                _set(self._configs, subject, config)
            case ModeRecord(subject, mode):
                _set(self._modes, subject, mode)
            case NoopRecord():
                pass

    def versions(self, subject: str, *, deleted: bool = False) -> list[SchemaVersion]:
        """Return the versions of a subject, oldest first; `deleted` includes soft-deleted versions."""
        found = self.subjects.get(subject, {})
        return [found[number] for number in sorted(found) if deleted or not found[number].deleted]

    def versions_of_all(self) -> Iterator[SchemaVersion]:
        """Return every version, by subject and number, soft-deleted versions included."""
        for subject in sorted(self.subjects):
            yield from self.versions(subject, deleted=True)

    def versions_of_id(self, schema_id: int) -> list[SchemaVersion]:
        """Return the versions with an id, soft-deleted versions included."""
        found = self.ids.get(schema_id, {})
        return [found[key] for key in sorted(found)]

    def referrers(self, subject: str, version: int, *, deleted: bool = False) -> list[SchemaVersion]:
        """Return the versions whose schemas reference this version."""
        return [
            value
            for value in self.versions_of_all()
            if (deleted or not value.deleted)
            and any((used.subject, used.version) == (subject, version) for used in value.schema.references)
        ]

    def config(self, subject: str | None) -> Config | None:
        """Return the settings of a subject, or the global settings for None; None if absent."""
        return self._configs.get(subject)

    def config_in_scope(self, subject: str | None) -> Config:
        """Return the effective settings of a subject: its own, else the global settings, else the defaults."""
        above = self._configs.get(None, Config()).merged(DEFAULT_CONFIG)
        return above if subject is None else self._configs.get(subject, Config()).merged(above)

    def mode(self, subject: str | None) -> Mode | None:
        """Return the mode of a subject, or the global mode for None; None if absent."""
        return self._modes.get(subject)

    def mode_in_scope(self, subject: str | None) -> Mode:
        """Return the effective mode of a subject; a global READONLY_OVERRIDE overrides the subject's mode."""
        for_all = self._modes.get(None, DEFAULT_MODE)
        if subject is None or for_all is Mode.READONLY_OVERRIDE:
            return for_all
        return self._modes.get(subject, for_all)

    def _put(self, value: SchemaVersion) -> None:
        self._remove(value.subject, value.version)
        self.subjects[value.subject] = self.subjects.get(value.subject, {}) | {value.version: value}
        of_id = self.ids.get(value.schema_id, {})
        self.ids[value.schema_id] = of_id | {(value.subject, value.version): value}
        self.digests.setdefault(value.schema.digest, value.schema_id)
        self.id_max = max(self.id_max, value.schema_id)

    def _remove(self, subject: str, version: int) -> None:
        of_subject = dict(self.subjects.get(subject, {}))
        value = of_subject.pop(version, None)
        if value is None:
            return
        self.subjects[subject] = of_subject
        if not of_subject:
            del self.subjects[subject]
        of_id = dict(self.ids[value.schema_id])
        del of_id[subject, version]
        self.ids[value.schema_id] = of_id
        if not of_id:
            del self.ids[value.schema_id]
            if self.digests.get(value.schema.digest) == value.schema_id:
                del self.digests[value.schema.digest]


def _set(values: dict[str | None, T], subject: str | None, value: T | None) -> None:
    if value is None:
        values.pop(subject, None)
    else:
        values[subject] = value
