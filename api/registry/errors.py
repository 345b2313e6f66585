"""Failures of the registry, with Confluent's codes and messages.

The first three digits of a code are the HTTP status.
"""

from __future__ import annotations

from typing import Final

FORBIDDEN: Final = 40301
SUBJECT_NOT_FOUND: Final = 40401
VERSION_NOT_FOUND: Final = 40402
SCHEMA_NOT_FOUND: Final = 40403
SUBJECT_SOFT_DELETED: Final = 40404
SUBJECT_NOT_SOFT_DELETED: Final = 40405
VERSION_SOFT_DELETED: Final = 40406
VERSION_NOT_SOFT_DELETED: Final = 40407
SUBJECT_CONFIG_NOT_FOUND: Final = 40408
SUBJECT_MODE_NOT_FOUND: Final = 40409
INCOMPATIBLE: Final = 409
INVALID_SCHEMA: Final = 42201
INVALID_VERSION: Final = 42202
INVALID_COMPATIBILITY: Final = 42203
INVALID_MODE: Final = 42204
NOT_PERMITTED: Final = 42205
REFERENCE_EXISTS: Final = 42206
INVALID_SUBJECT: Final = 42208
SCHEMA_TOO_LARGE: Final = 42209
INVALID_RULE_SET: Final = 42210
INVALID_REQUEST: Final = 422
STORE_FAILED: Final = 50001
STORE_TIMED_OUT: Final = 50002
NOT_THE_WRITER: Final = 50004


class RegistryError(Exception):
    """A request that the registry refuses or cannot complete; `code` is Confluent's."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message

    @property
    def status(self) -> int:
        """The HTTP status.

        >>> RegistryError(SUBJECT_NOT_FOUND, "").status, RegistryError(INCOMPATIBLE, "").status
        (404, 409)
        """
        return self.code // 100 if self.code >= 1_000 else self.code


def subject_not_found(subject: str) -> RegistryError:
    """The subject does not exist."""
    return RegistryError(SUBJECT_NOT_FOUND, f"Subject '{subject}' not found.")


def version_not_found(version: int | str) -> RegistryError:
    """The subject does not have this version."""
    return RegistryError(VERSION_NOT_FOUND, f"Version {version} not found.")


def schema_not_found(what: int | str | None = None) -> RegistryError:
    """No schema has this id, or the subject does not have this text."""
    return RegistryError(SCHEMA_NOT_FOUND, "Schema not found" if what is None else f"Schema {what} not found")


def invalid_schema(message: str) -> RegistryError:
    """The schema is invalid."""
    return RegistryError(INVALID_SCHEMA, message)


def not_permitted(message: str) -> RegistryError:
    """The mode, or existing schemas, do not permit the operation."""
    return RegistryError(NOT_PERMITTED, message)


def reference_exists(subject: str, version: int) -> RegistryError:
    """Other schemas reference this version."""
    key = f"{{magic=1,keytype=SCHEMA,subject={subject},version={version}}}"
    return RegistryError(REFERENCE_EXISTS, f"One or more references exist to the schema {key}.")
