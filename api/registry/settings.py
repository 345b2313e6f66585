"""Compatibility levels and modes, of a subject or global (subject None); pure."""

from __future__ import annotations

from headwater.api.registry import errors
from headwater.api.registry.errors import RegistryError
from headwater.api.registry.model import CompatibilityLevel, Config, Mode
from headwater.api.registry.record_codec import ClearSubjectRecord, ConfigRecord, ModeRecord, Record, SchemaRecord
from headwater.api.registry.registering import check_subject
from headwater.api.registry.state import RegistryState


def compatibility_level(text: str) -> CompatibilityLevel:
    """Parse a compatibility level.

    Raises:
        RegistryError: the text is not a compatibility level.
    """
    try:
        return CompatibilityLevel(text.upper())
    except ValueError:
        known = ", ".join(level.value.lower() for level in CompatibilityLevel)
        message = f"Invalid compatibility level. Valid values are {known}"
        raise RegistryError(errors.INVALID_COMPATIBILITY, message) from None


def mode(text: str) -> Mode:
    """Parse a mode.

    Raises:
        RegistryError: the text is not a mode.
    """
    try:
        return Mode(text.upper())
    except ValueError:
        known = ", ".join(known_mode.value for known_mode in Mode)
        raise RegistryError(errors.INVALID_MODE, f"Invalid mode. Valid values are {known}") from None


def set_config(state: RegistryState, subject: str | None, change: Config) -> list[Record]:
    """Return the records that apply the settings present in `change`; other settings remain.

    Raises:
        RegistryError: the mode forbids changes.
    """
    if subject is not None:
        check_subject(subject)
    _check_mode(state, subject)
    return [ConfigRecord(subject, change.merged(state.config(subject) or Config()))]


def delete_config(state: RegistryState, subject: str | None) -> tuple[Config, list[Record]]:
    """Return the previous settings, and the records that remove them.

    Raises:
        RegistryError: the subject has no settings, or the mode forbids changes.
    """
    _check_mode(state, subject)
    config = state.config(subject)
    if config is None:
        if subject is not None:
            raise errors.subject_not_found(subject)
        return state.config_in_scope(None), []
    return config, [ConfigRecord(subject, None)]


def set_mode(state: RegistryState, subject: str | None, wanted: Mode, *, force: bool) -> list[Record]:
    """Return the records that set a mode. IMPORT requires an empty scope, unless forced: ids could collide.

    Raises:
        RegistryError: the scope has live schemas, or other schemas reference its versions.
    """
    if subject is not None:
        check_subject(subject)
    records: list[Record] = []
    if wanted is Mode.IMPORT and state.mode_in_scope(subject) is not Mode.IMPORT and not force:
        versions = [version for version in state.versions_of_all() if subject in (None, version.subject)]
        if any(not version.deleted for version in versions):
            raise errors.not_permitted("Cannot import since found existing subjects")
        for version in versions:
            if any(user not in versions for user in state.referrers(version.subject, version.version, deleted=True)):
                raise errors.reference_exists(version.subject, version.version)
            records.append(SchemaRecord(version.subject, version.version, None))
        records.append(ClearSubjectRecord(subject))
    return [*records, ModeRecord(subject, wanted)]


def delete_mode(state: RegistryState, subject: str | None) -> tuple[Mode, list[Record]]:
    """Return the previous mode, and the records that remove it.

    Raises:
        RegistryError: the subject has no mode of its own.
    """
    found = state.mode(subject)
    if found is None:
        if subject is not None:
            raise errors.subject_not_found(subject)
        return state.mode_in_scope(None), []
    return found, [ModeRecord(subject, None)]


def _check_mode(state: RegistryState, subject: str | None) -> None:
    if state.mode_in_scope(subject).read_only:
        raise errors.not_permitted(f"Subject {subject} is in read-only mode")
