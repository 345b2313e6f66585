"""Settings of the platform: one table with the default, type, limits and description of each.

The first source with a value takes precedence: a flag of the command line, the environment (`HEADWATER_` and the name
in capitals), the settings file, the default. `HEADWATER_SETTINGS` names the settings file; without the variable it is
`conf/platform.yaml` in the current folder, if present. Broker properties are not settings: they have Kafka's names and
their own file, `broker_config`.

The supervisor and every command import this module first, so its imports are light: a pydantic model would take 0.2 to
0.3 s of the 1.5 s in which the Kafka port must answer.
"""

from __future__ import annotations

import dataclasses
import difflib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

ENVIRONMENT_PREFIX: Final = "HEADWATER_"
FILE_VARIABLE: Final = "HEADWATER_SETTINGS"
DEFAULT_FILE: Final = os.path.join("conf", "platform.yaml")
FILE_BYTES_MAX: Final = 1 << 20
"""A settings file is a page of text; a larger file is not a settings file."""

PORT_MAX: Final = 65_535
INT_MAX: Final = 2**31 - 1
LOG_LEVELS: Final = ("DEBUG", "INFO", "WARNING", "ERROR")
HTTP_CHANGES: Final = ("auto", "allow", "refuse")


class SettingsError(ValueError):
    """An invalid setting; the message names the place, the setting and a correction."""


def _setting(default: Any, doc: str, **limits: Any) -> Any:
    return dataclasses.field(default=default, metadata={"doc": doc, **limits})


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings, typed and within their limits. Immutable; `load_settings` creates it."""

    bootstrap_servers: str = _setting(
        "127.0.0.1:9092", "Brokers for commands and the REST API, as host:port[,host:port]."
    )
    data_dir: str = _setting("headwater-data", "Folder of the logs, for `headwater up` and `headwater broker`.")
    host: str = _setting(
        "127.0.0.1",
        "Listen address of `headwater up`, `broker` and `api`. Without listeners that require authentication, "
        "everybody who reaches an address other than the loopback address can read, write and delete all data.",
    )
    kafka_port: int = _setting(9092, "Port of the broker; 0 picks a free one.", min=0, max=PORT_MAX)
    http_port: int = _setting(8082, "Port of the REST API; 0 picks a free one.", min=0, max=PORT_MAX)
    metrics_port: int = _setting(
        9404, "Port of the broker's Prometheus metrics in `headwater up`; 0 picks a free one.", min=0, max=PORT_MAX
    )
    broker_config: str = _setting(
        "", "YAML file of broker properties with Kafka's names, such as conf/broker.yaml; empty for none."
    )
    command_config: str = _setting(
        "",
        "Client properties file for commands and the REST API: security.protocol, sasl.* and ssl.*, one name=value "
        "per line; empty for plain text.",
    )
    request_timeout_ms: int = _setting(10_000, "Timeout of a request to a broker.", min=100, max=600_000)
    http_body_bytes_max: int = _setting(1_048_576, "Largest body that the REST API accepts.", min=1_024, max=1 << 28)
    http_changes: str = _setting(
        "auto",
        "Whether the REST API and the schema registry accept changes: `auto` requires a broker without authentication "
        "and a loopback `host`, `allow` permits everybody who reaches the port, `refuse` permits nobody.",
        choices=HTTP_CHANGES,
    )
    http_hosts: str = _setting(
        "",
        "Further names of the REST API, separated by commas, besides localhost, `host` and the address that a request "
        "reached; requests to other names are rejected.",
    )
    registry_topic: str = _setting("_schemas", "Topic of the schema registry.")
    spark_master: str = _setting(
        "local[*]",
        "Where pipelines and `headwater sql` run: this machine, or a cluster such as spark://host:7077; a pipeline's "
        "`spark:` and `--conf spark.master=...` take precedence.",
    )
    sql_idle_ms: int = _setting(
        600_000, "Time without a query after which the SQL service ends its Spark.", min=1_000, max=INT_MAX
    )
    sql_queries_max: int = _setting(8, "Queries that the SQL service runs at once; others are refused.", min=1, max=100)
    checkpoints: str = _setting(
        "",
        "URL below which pipelines keep checkpoints and records, such as hdfs:///checkpoints; empty for the state "
        "folder. A pipeline's `checkpoints:` and `--checkpoints` take precedence.",
    )
    start_timeout_ms: int = _setting(
        60_000,
        "Time limit for the start of a node's process, including recovery of the logs.",
        min=1_000,
        max=INT_MAX,
    )
    stop_timeout_ms: int = _setting(
        30_000, "Time limit for the stop of a node's process; then the process is killed.", min=100, max=INT_MAX
    )
    restart_attempts_max: int = _setting(
        5,
        "Restarts in a row of a broker that died, before the node ends; the REST API restarts without limit.",
        min=0,
        max=1_000,
    )
    restart_backoff_ms: int = _setting(
        200, "Pause before the first restart; each further pause is twice as long.", min=1, max=INT_MAX
    )
    restart_backoff_max_ms: int = _setting(10_000, "Longest pause before a restart.", min=1, max=INT_MAX)
    restart_healthy_after_ms: int = _setting(
        60_000, "Uptime after which a process counts as healthy and its restarts are reset.", min=0, max=INT_MAX
    )
    log_level: str = _setting("WARNING", "Lowest severity of log lines on stderr.", choices=LOG_LEVELS)


FIELDS: Final[Mapping[str, dataclasses.Field[Any]]] = {field.name: field for field in dataclasses.fields(Settings)}


def environment_name(name: str) -> str:
    """Return the environment variable of a setting.

    >>> environment_name("kafka_port")
    'HEADWATER_KAFKA_PORT'
    """
    return ENVIRONMENT_PREFIX + name.upper()


def parse_value(name: str, text: str, where: str) -> str | int:
    """Parse the text of a setting.

    Raises:
        SettingsError: The value has the wrong type or is outside its limits.

    >>> parse_value("kafka_port", "0", "HEADWATER_KAFKA_PORT")
    0
    >>> parse_value("http_changes", "Allow", "HERE"), parse_value("log_level", "info", "HERE")
    ('allow', 'INFO')
    >>> parse_value("kafka_port", "high", "HEADWATER_KAFKA_PORT")
    Traceback (most recent call last):
        ...
    headwater.settings.SettingsError: HEADWATER_KAFKA_PORT: kafka_port is 'high'; it must be a whole number
    """
    field = FIELDS[name]
    limits = field.metadata
    if isinstance(field.default, int):
        try:
            number = int(text.replace("_", "") if text.strip() == text else "")
        except ValueError:
            raise SettingsError(f"{where}: {name} is {text[:60]!r}; it must be a whole number") from None
        if not limits["min"] <= number <= limits["max"]:
            raise SettingsError(f"{where}: {name} is {number}; it must be from {limits['min']} to {limits['max']}")
        return number
    choices = limits.get("choices")
    if choices is not None:
        choice: str | None = next((each for each in choices if each.lower() == text.lower()), None)
        if choice is None:
            raise SettingsError(f"{where}: {name} is {text[:60]!r}; it must be one of {', '.join(choices)}")
        return choice
    if not text.strip() and field.default:
        raise SettingsError(f"{where}: {name} is empty; leave it out for its default, {field.default!r}")
    return text


def read_file(path: str) -> dict[str, str | int]:
    """Read a settings file: a flat mapping of setting to value.

    Raises:
        SettingsError: The file cannot be read, is not YAML, or holds an unknown setting or an invalid value; the
            message names the file and the line.
    """
    try:
        if os.path.getsize(path) > FILE_BYTES_MAX:
            raise SettingsError(f"{path}: the file is larger than {FILE_BYTES_MAX} bytes; is it the settings file?")
        with open(path, encoding="utf-8") as file:
            text = file.read()
        if all(not line.strip() or line.lstrip().startswith("#") for line in text.splitlines()):
            return {}  # the annotated example, unchanged: needs no YAML parser
    except OSError as error:
        raise SettingsError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise SettingsError(f"{path}: is not UTF-8 text") from None
    import yaml

    try:
        document = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark is not None else ""
        raise SettingsError(f"{path}{line}: is not YAML: {getattr(error, 'problem', error)}") from None
    if document is None or (isinstance(document, yaml.ScalarNode) and not document.value):
        return {}
    if not isinstance(document, yaml.MappingNode):
        raise SettingsError(f"{path}:1: must be a mapping of settings, such as `kafka_port: 9092`")
    values: dict[str, str | int] = {}
    for key, value in document.value:
        where = f"{path}:{key.start_mark.line + 1}"
        name = key.value if isinstance(key, yaml.ScalarNode) else "(a collection)"
        if name not in FIELDS:
            close = difflib.get_close_matches(name, FIELDS, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"known are {', '.join(FIELDS)}"
            raise SettingsError(f"{where}: unknown setting {name[:60]!r}; {hint}")
        if name in values:
            raise SettingsError(f"{where}: {name} is set twice; keep one")
        if not isinstance(value, yaml.ScalarNode):
            raise SettingsError(f"{where}: {name} must be one value, not a collection")
        values[name] = parse_value(name, value.value, where)
    return values


def load_settings(environment: Mapping[str, str] | None = None) -> Settings:
    """Read the settings file and the environment.

    Raises:
        SettingsError: A value is invalid.
    """
    environment = os.environ if environment is None else environment
    path = environment.get(FILE_VARIABLE)
    values: dict[str, str | int] = {}
    if path or os.path.isfile(DEFAULT_FILE):
        values = read_file(path or DEFAULT_FILE)
    for name in FIELDS:
        variable = environment_name(name)
        if variable in environment:
            values[name] = parse_value(name, environment[variable], variable)
    # Every value was parsed to the type of its field.
    return Settings(**values)  # type: ignore[arg-type]
