"""Config definitions: name, type, default, limits and documentation of a config, and the parsing of its text.

A config table is a frozen dataclass with fields created by `config()`. The attribute `log_segment_bytes` is the config
`log.segment.bytes`, so the table, the typed access and the documentation always agree.
"""

import dataclasses
import difflib
import enum
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

Value = str | int | float | bool | tuple[str, ...] | None

INT_MAX: Final = 2**31 - 1
LONG_MAX: Final = 2**63 - 1

MAX_VALUE_LENGTH: Final = 32_767
"""Maximum length of a config value: the limit of a STRING in the protocol, so that DescribeConfigs can send it."""


class ConfigError(ValueError):
    """An invalid config; the message is one line with the config, the reason and a correction."""


class ConfigType(enum.IntEnum):
    """Config types, with the numbers of DescribeConfigs."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


_INTEGER_LIMITS: Final = {
    ConfigType.SHORT: (-(2**15), 2**15 - 1),
    ConfigType.INT: (-(2**31), INT_MAX),
    ConfigType.LONG: (-(2**63), LONG_MAX),
}


@dataclass(frozen=True, slots=True)
class Validator:
    """A rule over a parsed value; `expects` completes the sentence "must be ..."."""

    expects: str
    accepts: Callable[[Any], bool]


def at_least(minimum: float) -> Validator:
    """Return a validator of numbers not below `minimum`."""
    return Validator(f"{minimum} or more", lambda value: value >= minimum)


def between(minimum: float, maximum: float) -> Validator:
    """Return a validator of numbers from `minimum` to `maximum`, inclusive."""
    return Validator(f"between {minimum} and {maximum}", lambda value: minimum <= value <= maximum)


def either(first: Validator, second: Validator) -> Validator:
    """Return a validator of values that at least one of the two accepts."""
    return Validator(
        f"{first.expects}, or {second.expects}", lambda value: first.accepts(value) or second.accepts(value)
    )


def one_of(*choices: str) -> Validator:
    """Return a validator of words in `choices`."""
    return Validator(f"one of {', '.join(choices)}", lambda value: value in choices)


def list_of(*choices: str) -> Validator:
    """Return a validator of non-empty lists of distinct words in `choices`."""
    return Validator(
        f"a list of {', '.join(choices)}",
        lambda value: bool(value) and len(set(value)) == len(value) and all(word in choices for word in value),
    )


def replica_list() -> Validator:
    """Return a validator of lists of replicas, each as `partition:broker`; `*` alone stands for all replicas."""
    entry = re.compile(r"[0-9]{1,10}:[0-9]{1,10}", re.ASCII)
    return Validator(
        "* or a list of partition:broker",
        lambda value: value == ("*",) or all(entry.fullmatch(each) for each in value),
    )


def distinct() -> Validator:
    """Return a validator of lists, possibly empty, of distinct entries that are not blank."""
    return Validator(
        "a list of distinct entries",
        lambda value: len(set(value)) == len(value) and all(part.strip() for part in value),
    )


def non_empty() -> Validator:
    """Return a validator of non-empty lists without blank entries."""
    return Validator("a list of at least one entry", lambda value: bool(value) and all(value))


@dataclass(frozen=True, slots=True)
class Unsupported:
    """Values that Kafka allows and this broker does not implement; the broker rejects them.

    Attributes:
        accepts: Whether a value is supported.
        reason: Explanation for the user.
    """

    accepts: Callable[[Any], bool]
    reason: str


@dataclass(frozen=True, slots=True)
class ConfigDef:
    """Definition of one config.

    Attributes:
        default: None if Kafka's default is null.
        broker_configs: Broker configs that give the default of a topic or group config, in order of precedence.
        dynamic: Whether the config can be altered while the broker runs.
    """

    name: str
    type: ConfigType
    default: Value
    doc: str
    validator: Validator | None = None
    unsupported: Unsupported | None = None
    broker_configs: tuple[str, ...] = ()
    dynamic: bool = False

    @property
    def attribute(self) -> str:
        """Name of the typed attribute."""
        return attribute_name(self.name)

    @property
    def sensitive(self) -> bool:
        """Whether the value is a secret; secrets are never sent in responses or written to logs."""
        return self.type is ConfigType.PASSWORD

    def parse(self, raw: object) -> Value:
        """Parse and validate a text, or validate a typed value; ConfigError for an invalid value.

        >>> ConfigDef("num.partitions", ConfigType.INT, 1, "", at_least(1)).parse(" 6 ")
        6
        >>> ConfigDef("log.dirs", ConfigType.LIST, (), "").parse("a, b")
        ('a', 'b')
        """
        if raw is None:
            if self.default is None:
                return None
            raise ConfigError(f"{self.name}: a value is missing; it must be of type {self.type.name}")
        if isinstance(raw, str) and len(raw) > MAX_VALUE_LENGTH:
            raise ConfigError(f"{self.name}: the value is {len(raw)} characters long, {MAX_VALUE_LENGTH} is the limit")
        value = self._parse_type(raw)
        if self.validator is not None and not self.validator.accepts(value):
            raise ConfigError(f"{self.name}: must be {self.validator.expects}, not {self._shown(raw)}")
        return value

    def check_supported(self, value: Value) -> None:
        """Raise ConfigError for a valid value that this broker does not support."""
        if self.unsupported is not None and not self.unsupported.accepts(value):
            raise ConfigError(f"{self.name}={self._shown(value)} is not supported: {self.unsupported.reason}")

    def _parse_type(self, raw: object) -> Value:
        text = raw.strip() if isinstance(raw, str) else raw
        match self.type:
            case ConfigType.BOOLEAN:
                if isinstance(text, bool):
                    return text
                if isinstance(text, str) and text.lower() in ("true", "false"):
                    return text.lower() == "true"
            case ConfigType.INT | ConfigType.LONG | ConfigType.SHORT:
                number = _integer(text)
                low, high = _INTEGER_LIMITS[self.type]
                if number is not None and low <= number <= high:
                    return number
            case ConfigType.DOUBLE:
                real = _real(text)
                if real is not None:
                    return real
            case ConfigType.LIST:
                if isinstance(text, str):
                    return tuple(part.strip() for part in text.split(",")) if text else ()
                if isinstance(text, list | tuple) and all(isinstance(part, str) for part in text):
                    return tuple(text)
            case _:
                if isinstance(text, str):
                    return text
        raise ConfigError(f"{self.name}: must be of type {self.type.name}, not {self._shown(raw)}")

    def _shown(self, raw: object) -> str:
        if self.sensitive:
            return "[hidden]"
        text = render(raw) if isinstance(raw, str | int | float | bool | tuple) else repr(raw)
        return repr(text if text is None or len(text) <= 200 else text[:200] + "...")


def _integer(text: object) -> int | None:
    if isinstance(text, int) and not isinstance(text, bool):
        return text
    if isinstance(text, str) and len(text) <= 32:
        digits = text[1:] if text[:1] in ("-", "+") else text
        if digits.isascii() and digits.isdigit():
            return int(text)
    return None


def _real(text: object) -> float | None:
    if isinstance(text, str):
        try:
            text = float(text)
        except ValueError:
            return None
    if isinstance(text, int | float) and not isinstance(text, bool) and text == text:
        return float(text)
    return None


def config(
    config_type: ConfigType,
    default: Value,
    doc: str,
    validator: Validator | None = None,
    *,
    unsupported: Unsupported | None = None,
    broker_configs: tuple[str, ...] = (),
    dynamic: bool = False,
) -> Any:
    """Return a dataclass field that defines a config; the attribute determines the name."""
    settings = {
        "type": config_type,
        "default": default,
        "doc": doc,
        "validator": validator,
        "unsupported": unsupported,
        "broker_configs": broker_configs,
        "dynamic": dynamic,
    }
    # The repr of the table must not contain secrets.
    return dataclasses.field(
        default=default, repr=config_type is not ConfigType.PASSWORD, metadata={"config": settings}
    )


def config_defs(table: type) -> dict[str, ConfigDef]:
    """Return the definitions in a table (a dataclass with `config()` fields), by Kafka's name."""
    definitions = {}
    for field in dataclasses.fields(table):
        settings = field.metadata.get("config")
        if settings is not None:
            name = config_name(field.name)
            definitions[name] = ConfigDef(name=name, **settings)
    return definitions


def config_name(attribute: str) -> str:
    """Return Kafka's name of an attribute.

    >>> config_name("log_segment_bytes")
    'log.segment.bytes'
    """
    return attribute.replace("_", ".")


def attribute_name(name: str) -> str:
    """Return the attribute of a Kafka name."""
    return name.replace(".", "_")


def render(value: Value) -> str | None:
    """Format a value as Kafka does.

    >>> render(("delete", "compact")), render(True), render(0.5), render(1e308), render(None)
    ('delete,compact', 'true', '0.5', '1.0E308', None)
    """
    if value is None:
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return ",".join(value)
    if isinstance(value, float):  # as Java writes a double
        mantissa, exponent, power = repr(value).partition("e")
        return f"{mantissa if '.' in mantissa else mantissa + '.0'}E{int(power)}" if exponent else mantissa
    return str(value)


def unknown_name(what: str, name: str, known: Iterable[str]) -> ConfigError:
    """Return the error for an unknown name, with the nearest known name as a hint."""
    nearest = difflib.get_close_matches(name[:200], list(known), n=1, cutoff=0.6)
    hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
    return ConfigError(f"{what} {name[:200]!r} is not known{hint}")
