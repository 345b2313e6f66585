"""Text that may contain secrets: `${env:NAME}` and `${file:PATH}` in a file. Pure: the reader is an argument.

A `SecretText` shows the reference wherever it is printed, compared or logged; only `reveal` returns its value. Between
substitution and validation, plain text carries a reference in a form that no YAML file can contain (`REFERENCE`), so an
escaped `$${env:X}` is never mistaken for a reference.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler, ValidationInfo
from pydantic_core import CoreSchema, core_schema

SECRET_BYTES_MAX = 65_536  # limit of a secret's file: a certificate chain fits
SHOWN_INSTEAD = "***"
REDACTED_LENGTH_MIN = 4  # shorter values are no secrets, and occur in any text by chance

REFERENCE = re.compile("\0(env|file):([^\0]+)\0")
_SHOWN_REFERENCE = re.compile(r"\$\{(env|file):")
# Secrets written into the file itself, without a reference, must not be shown either.
SECRET_NAME = re.compile(
    r"pass(?!e)(word|wd|phrase)?|pwd|secret|token|credential|jaas|private|(api|access)[._-]?key", re.IGNORECASE
)
# A value that begins with a brace may contain any delimiter (SQL Server): it is hidden to the end of the text.
_IN_URL = re.compile(r"(?i)(?<=//)[^\s?]+(?=@)|(?<=password=)(?:\{.*|[^;&\s]+)|(?<=pwd=)(?:\{.*|[^;&\s]+)")


class SecretMissingError(Exception):
    """A required secret is missing. The message names the variable or the file, never a value."""


def carries_reference(text: str) -> bool:
    """Return whether substituted text refers to a secret."""
    return "\0" in text


def references_shown(text: str) -> str:
    """Return substituted text with its references as written in the file.

    >>> references_shown("a\\0env:PW\\0b")
    'a${env:PW}b'
    """
    return REFERENCE.sub(lambda match: f"${{{match[1]}:{match[2]}}}", text)


class Secrets:
    """Looks up each secret once, and remembers the values to redact them from other programs' messages."""

    __slots__ = ("_environ", "_found", "_learnt", "_read")

    def __init__(self, environ: Mapping[str, str], read: Callable[[str], str]) -> None:
        """`read` returns the text of a file by its path, or raises OSError or UnicodeDecodeError."""
        self._environ = environ
        self._read = read
        self._found: dict[str, str | None] = {}
        self._learnt: dict[str, str] = {}

    def learn(self, value: str, shown: str) -> None:
        """Remember a secret that the file itself contains, and the text to show in its place."""
        self._learnt[value] = shown

    def look_up(self, kind: str, name: str) -> str | None:
        """Return the value of `${kind:name}`; None if missing."""
        reference = f"${{{kind}:{name}}}"
        if reference not in self._found:
            self._found[reference] = self._environ.get(name) if kind == "env" else self._file(name)
        return self._found[reference]

    def _file(self, path: str) -> str | None:
        try:
            return self._read(path).removesuffix("\n").removesuffix("\r")
        except (OSError, UnicodeDecodeError):
            return None

    def missing(self) -> list[str]:
        """Return the references without a value."""
        return [reference for reference, value in self._found.items() if value is None]

    def redacted(self, text: str) -> str:
        """Replace each secret's value in a text by its reference, or by its replacement text.

        >>> secrets = Secrets({"PW": "hunter2"}, lambda path: "")
        >>> secrets.look_up("env", "PW") and secrets.redacted("login failed: hunter2")
        'login failed: ${env:PW}'
        """
        shown = self._learnt | {value: reference for reference, value in self._found.items() if value}
        for value in sorted(shown, key=len, reverse=True):
            if len(value) >= REDACTED_LENGTH_MIN:
                text = text.replace(value, shown[value])
        return text


class SecretText:
    """Text with secrets: `str()` and `repr()` show references, `reveal()` returns the value."""

    __slots__ = ("_shown", "_value")

    def __init__(self, shown: str, value: str | None) -> None:
        """`value` is None if a referenced secret is missing."""
        self._shown = shown
        self._value = value

    @classmethod
    def of(cls, text: str, secrets: Secrets | None = None, *, is_secret: bool = False) -> SecretText:
        """Create from substituted text. Plain text is shown, except passwords in URLs, unless it `is_secret`."""
        if not carries_reference(text):
            if is_secret and text:
                if secrets is not None:
                    secrets.learn(text, SHOWN_INSTEAD)
                return cls(SHOWN_INSTEAD, text)
            return cls(_IN_URL.sub(SHOWN_INSTEAD, text), text)
        found = [secrets.look_up(kind, name) if secrets else None for kind, name in REFERENCE.findall(text)]
        value = None
        if all(part is not None for part in found):
            parts = iter(found)
            value = REFERENCE.sub(lambda _: next(parts) or "", text)
        return cls(references_shown(text), value)

    def reveal(self) -> str:
        """Return the text with its secrets. Raises SecretMissingError if a secret is missing."""
        if self._value is None:
            raise SecretMissingError(f"no value for {self._shown}")
        return self._value

    @property
    def value(self) -> str | None:
        """Return the text with its secrets; None if a secret is missing."""
        return self._value

    def masked(self) -> SecretText:
        """Return the same value with hidden text; a reference remains visible."""
        return self if _SHOWN_REFERENCE.search(self._shown) else SecretText(SHOWN_INSTEAD, self._value)

    @property
    def is_missing(self) -> bool:
        """Whether a referenced secret is missing."""
        return self._value is None

    def __str__(self) -> str:
        return self._shown

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._shown!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SecretText) and (self._shown, self._value) == (other._shown, other._value)

    def __hash__(self) -> int:
        return hash((self._shown, self._value))

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.with_info_plain_validator_function(
            cls._validated, serialization=core_schema.to_string_ser_schema()
        )

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"type": ["string", "number", "boolean"]}

    @classmethod
    def _validated(cls, value: Any, info: ValidationInfo) -> SecretText:
        if isinstance(value, SecretText):
            return value
        if not isinstance(value, str | int | float):
            raise ValueError("expected text")
        text = str(value).lower() if isinstance(value, bool) else str(value)
        secrets = (info.context or {}).get("secrets") if isinstance(info.context, dict) else None
        return cls.of(text, secrets, is_secret=issubclass(cls, Password))


class Password(SecretText):
    """Text that is always a secret: never shown, even if the file contains it as plain text."""

    __slots__ = ()


def masked_secrets(options: dict[str, SecretText], info: ValidationInfo) -> dict[str, SecretText]:
    """Mask options like `masked_by_name`, and redact the masked values from other programs' messages."""
    masked = masked_by_name(options)
    secrets = (info.context or {}).get("secrets") if isinstance(info.context, dict) else None
    for text in masked.values():
        if secrets is not None and str(text) == SHOWN_INSTEAD and text.value:
            secrets.learn(text.value, SHOWN_INSTEAD)
    return masked


def masked_by_name(options: dict[str, SecretText]) -> dict[str, SecretText]:
    """Mask options whose names mark them as secrets, even if the file contains their values.

    >>> masked_by_name({"password": SecretText.of("hunter2"), "fetchsize": SecretText.of("10")})
    {'password': SecretText('***'), 'fetchsize': SecretText('10')}
    """
    return {name: text.masked() if SECRET_NAME.search(name) else text for name, text in options.items()}
