"""Soft and permanent deletion of versions and subjects; pure."""

from __future__ import annotations

from dataclasses import replace

from headwater.api.registry import errors
from headwater.api.registry.errors import RegistryError
from headwater.api.registry.model import SchemaVersion
from headwater.api.registry.record_codec import ConfigRecord, DeleteSubjectRecord, ModeRecord, Record, SchemaRecord
from headwater.api.registry.state import RegistryState


def delete_subject(state: RegistryState, subject: str, *, permanent: bool) -> tuple[list[int], list[Record]]:
    """Return the deleted versions, and the records that delete them.

    Raises:
        RegistryError: the subject does not exist, is in the wrong state, or is referenced by another schema.
    """
    _check_mode(state, subject)
    every, live = state.versions(subject, deleted=True), state.versions(subject)
    if not every:
        raise errors.subject_not_found(subject)
    if permanent and live:
        message = f"Subject '{subject}' was not deleted first before being permanently deleted"
        raise RegistryError(errors.SUBJECT_NOT_SOFT_DELETED, message)
    if not permanent and not live:
        message = f"Subject '{subject}' was soft deleted. Set permanent=true to delete permanently"
        raise RegistryError(errors.SUBJECT_SOFT_DELETED, message)
    going = every if permanent else live
    for version in going:
        users = state.referrers(subject, version.version, deleted=permanent)
        if any(user.subject != subject for user in users):
            raise errors.reference_exists(subject, version.version)
    numbers = [version.version for version in going]
    records: list[Record]
    if permanent:
        records = [SchemaRecord(subject, number, None) for number in reversed(numbers)]
    else:
        records = [DeleteSubjectRecord(subject, numbers[-1])]
    return numbers, [*records, *_settings(state, subject)]


def delete_version(state: RegistryState, version: SchemaVersion, *, permanent: bool) -> list[Record]:
    """Return the records that delete a version.

    Raises:
        RegistryError: the version is in the wrong state, or is referenced by another schema.
    """
    subject, number = version.subject, version.version
    _check_mode(state, subject)
    if permanent and not version.deleted:
        message = f"Subject '{subject}' Version {number} was not deleted first before being permanently deleted"
        raise RegistryError(errors.VERSION_NOT_SOFT_DELETED, message)
    if not permanent and version.deleted:
        message = f"Subject '{subject}' Version {number} was soft deleted. Set permanent=true to delete permanently"
        raise RegistryError(errors.VERSION_SOFT_DELETED, message)
    if state.referrers(subject, number, deleted=permanent):
        raise errors.reference_exists(subject, number)
    if permanent:
        return [SchemaRecord(subject, number, None)]
    records: list[Record] = [SchemaRecord(subject, number, replace(version, deleted=True))]
    if len(state.versions(subject)) == 1:
        records += _settings(state, subject)
    return records


def _check_mode(state: RegistryState, subject: str) -> None:
    if state.mode_in_scope(subject).read_only:
        raise errors.not_permitted(f"Subject {subject} is in read-only mode")


def _settings(state: RegistryState, subject: str) -> list[Record]:
    """Return the records that delete a subject's own settings together with the subject."""
    records: list[Record] = []
    if state.mode(subject) is not None:
        records.append(ModeRecord(subject, None))
    if state.config(subject) is not None:
        records.append(ConfigRecord(subject, None))
    return records
