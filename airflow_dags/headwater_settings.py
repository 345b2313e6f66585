"""The settings of the DAGs: a YAML file, read when Airflow parses the DAGs. A mistake is the DAG's import error.

`HEADWATER_AIRFLOW_SETTINGS` names the file; without the variable it is `airflow.yaml` beside this module.
"""

from __future__ import annotations

import dataclasses
import difflib
import os
import re
import types
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import yaml

__all__ = [
    "Check",
    "Event",
    "Lag",
    "Load",
    "Mail",
    "Maintenance",
    "Publish",
    "Settings",
    "SettingsError",
    "read_settings",
]

FILE_VARIABLE = "HEADWATER_AIRFLOW_SETTINGS"
FILE_BYTES_MAX = 1 << 20
ENTRIES_MAX = 1_000  # a DAG each: Airflow parses them all every few minutes
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
T = TypeVar("T")


class SettingsError(Exception):
    """A mistake in the settings; the message names the file, the place and a correction."""


@dataclass(frozen=True)
class Check:
    """What a load must meet, for each of its topics. None checks nothing.

    Attributes:
        rows_min: Fewest rows.
        refused_max: Most rows that could not be decoded.
        late_max: Most rows that came after their interval was loaded.
        gaps: Whether records that retention removed before they were loaded fail the run.
        fresh_s: Longest time from an interval's end until it is loaded, of scheduled runs.
    """

    rows_min: int = 0
    refused_max: int | None = 0
    late_max: int | None = None
    gaps: Literal["fail", "allow"] = "fail"
    fresh_s: float | None = None


@dataclass(frozen=True)
class Maintenance:
    """Regular work on a load's targets, one after the other."""

    schedule: str
    verify: bool = True
    optimize: bool = True
    #: Hours of old versions that VACUUM leaves; None does not run it.
    vacuum_hours: int | None = 168


@dataclass(frozen=True)
class Load:
    """A load of several topics, an interval a run.

    Attributes:
        to: URL of the target, with `{topic}` if there are several topics.
        schedule: Cron expression: the intervals are those between its times.
        lateness_s: How much longer than its end an interval waits for late records.
        idle_s: A partition without new records for that long is idle, and does not hold an interval back.
        ready_within_s: How long a run waits for its topics before it fails.
        options: Further options of `headwater load`; no secrets.
    """

    name: str
    topics: list[str]
    to: str
    start: datetime
    format: str = "delta"
    schedule: str = "0 * * * *"
    timezone: str = "UTC"
    catchup: bool = False
    lateness_s: float = 0.0
    idle_s: float = 5.0
    poke_s: float = 60.0
    ready_within_s: float = 6 * 3600.0
    partition_by: list[str] = field(default_factory=list)
    value: str | None = None
    schema: str | None = None
    registry: str | None = None
    options: list[str] = field(default_factory=list)
    retries: int = 3
    retry_delay_s: float = 300.0
    timeout_s: float = 2 * 3600.0
    check: Check = field(default_factory=Check)
    maintenance: Maintenance | None = None


@dataclass(frozen=True)
class Event:
    """A load of a topic's new records whenever records come to a watched topic.

    Attributes:
        watch: The topic whose records are the events.
        header: Name of a header that a record must have to be an event; None for every record.
        connection: Airflow's Kafka connection, with a `group.id`, of the consumer that waits for events.
    """

    name: str
    watch: str
    topics: list[str]
    to: str
    connection: str
    header: str | None = None
    format: str = "delta"
    value: str | None = None
    schema: str | None = None
    registry: str | None = None
    options: list[str] = field(default_factory=list)
    retries: int = 3
    retry_delay_s: float = 60.0
    timeout_s: float = 2 * 3600.0
    poll_s: float = 5.0


@dataclass(frozen=True)
class Publish:
    """A result that is published to a topic: a file set, a Delta version, or the changes since the last one published.

    Attributes:
        after: Names of loads: it runs when each of them has loaded since the last run. Else `schedule` says when.
        sql: A statement that makes the result before it is published.
        what: `files`; `version`, the newest of a Delta table; `changes`, since the version that was published before.
    """

    name: str
    path: str
    topic: str
    key: list[str]
    what: Literal["files", "version", "changes"] = "version"
    after: list[str] = field(default_factory=list)
    schedule: str | None = None
    start: datetime = datetime(2024, 1, 1, tzinfo=UTC)
    sql: str | None = None
    format: str | None = None
    options: list[str] = field(default_factory=list)
    retries: int = 3
    retry_delay_s: float = 300.0
    timeout_s: float = 2 * 3600.0


@dataclass(frozen=True)
class Lag:
    """A limit on a consumer group's lag. A run fails, which is the alert, if a partition is beyond it."""

    name: str
    group: str
    lag_max: int
    connection: str
    schedule: str = "*/5 * * * *"
    topics: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Mail:
    """Who gets a mail about a failed task, by one of Airflow's SMTP connections."""

    to: list[str]
    connection: str = "smtp_default"


@dataclass(frozen=True)
class Settings:
    """All settings.

    Attributes:
        command: The command `headwater`, a name on PATH or a path.
        connection: Airflow's Kafka connection with the brokers and how to log in; it wins over the next two.
        command_config: Path of a file of Kafka client properties, on each worker.
        environment: Variables of the command, such as HADOOP_CONF_DIR; no secrets.
    """

    command: str = "headwater"
    connection: str | None = None
    bootstrap_servers: str | None = None
    command_config: str | None = None
    environment: dict[str, str] = field(default_factory=dict)
    mail: Mail | None = None
    loads: list[Load] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    publish: list[Publish] = field(default_factory=list)
    lag: list[Lag] = field(default_factory=list)


def read_settings(environment: Mapping[str, str] | None = None) -> Settings:
    """Read the file. Raises SettingsError."""
    given = (os.environ if environment is None else environment).get(FILE_VARIABLE)
    path = given or os.path.join(os.path.dirname(os.path.abspath(__file__)), "airflow.yaml")
    try:
        if os.path.getsize(path) > FILE_BYTES_MAX:
            raise SettingsError(f"{path}: larger than {FILE_BYTES_MAX} bytes; is it the settings file?")
        with open(path, encoding="utf-8") as file:
            document = yaml.safe_load(file)
    except OSError as error:
        raise SettingsError(
            f"{path}: cannot be read: {error.strerror}; name the settings of the DAGs by {FILE_VARIABLE}"
        ) from None
    except UnicodeDecodeError:
        raise SettingsError(f"{path}: is not UTF-8 text") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark is not None else ""
        raise SettingsError(f"{path}{line}: is not YAML: {getattr(error, 'problem', error)}") from None
    try:
        return settings_of(document or {})
    except SettingsError as error:
        raise SettingsError(f"{path}: {error}") from None


def settings_of(document: Any) -> Settings:
    """The settings in a document. Raises SettingsError."""
    found = _parsed(Settings, document, "settings")
    entries = [*found.loads, *found.events, *found.publish, *found.lag]
    if len(entries) > ENTRIES_MAX:
        raise SettingsError(f"{len(entries)} DAGs are more than {ENTRIES_MAX}")
    # A load and an event of one name would have the same pool and assets.
    targets: list[Load | Event] = [*found.loads, *found.events]
    for names in (
        [each.name for each in targets],
        [publish.name for publish in found.publish],
        [lag.name for lag in found.lag],
    ):
        for name in names:
            if not NAME.fullmatch(name):
                raise SettingsError(f"name: {name[:60]!r}: use 1 to 100 letters, digits and . _ -")
            if names.count(name) > 1:
                raise SettingsError(f"name: {name!r} is given twice")
    for each in targets:
        if not each.topics:
            raise SettingsError(f"{each.name}: topics: name at least one")
        if len(each.topics) > 1 and "{topic}" not in each.to:
            raise SettingsError(f"{each.name}: to: several topics need {{topic}} in the URL")
    owners: dict[str, str] = {}
    for each in targets:
        for topic in each.topics:
            target = each.to.replace("{topic}", topic).rstrip("/")
            if target in owners:
                raise SettingsError(
                    f"{each.name}: to: {target} is a target of {owners[target]} already; "
                    "a target has one entry, for its pool and its asset"
                )
            owners[target] = each.name
    for load in found.loads:
        if (
            load.maintenance is not None
            and load.format != "delta"
            and (load.maintenance.optimize or load.maintenance.vacuum_hours is not None)
        ):
            raise SettingsError(
                f"{load.name}: maintenance: {load.format} has neither OPTIMIZE nor VACUUM: "
                "set optimize: false and vacuum_hours: null"
            )
    known = {load.name for load in found.loads}
    for publish in found.publish:
        for name in publish.after:
            if name not in known:
                raise SettingsError(f"{publish.name}: after: there is no load {name!r}{_near(name, known)}")
        if bool(publish.after) == (publish.schedule is not None):
            raise SettingsError(f"{publish.name}: give either after or schedule")
    return found


def _parsed(kind: type[T], value: Any, where: str) -> T:
    """A dataclass from a mapping; unknown and missing keys are mistakes."""
    if not isinstance(value, Mapping):
        raise SettingsError(f"{where}: must be a mapping")
    hints = get_type_hints(kind)
    fields = {each.name: each for each in dataclasses.fields(kind)}  # type: ignore[arg-type]
    for name in value:
        if name not in fields:
            raise SettingsError(f"{where}: unknown setting {str(name)[:60]!r}{_near(str(name), fields)}")
    found = {name: _value(hints[name], given, f"{where}.{name}") for name, given in value.items()}
    for name, each in fields.items():
        required = each.default is dataclasses.MISSING and each.default_factory is dataclasses.MISSING
        if required and name not in found:
            raise SettingsError(f"{where}: {name} is missing")
    return kind(**found)


def _value(hint: Any, value: Any, where: str) -> Any:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        if value is None:
            return None
        [hint] = [each for each in arguments if each is not type(None)]
        return _value(hint, value, where)
    if origin is Literal:
        if value not in arguments:
            raise SettingsError(f"{where}: {value!r} must be one of {', '.join(arguments)}")
        return value
    if origin is list:
        if not isinstance(value, list):
            raise SettingsError(f"{where}: must be a list")
        return [_value(arguments[0], each, f"{where}[{number}]") for number, each in enumerate(value)]
    if origin is dict:
        if not isinstance(value, Mapping):
            raise SettingsError(f"{where}: must be a mapping")
        return {str(name): _value(arguments[1], each, f"{where}.{name}") for name, each in value.items()}
    if dataclasses.is_dataclass(hint):
        return _parsed(hint, value, where)  # type: ignore[arg-type]
    if hint is datetime:
        return _time(value, where)
    accepted = (int, float) if hint is float else hint
    if not isinstance(value, accepted) or (isinstance(value, bool) and hint is not bool):
        raise SettingsError(f"{where}: {str(value)[:60]!r} must be {_KINDS[hint]}")
    if hint in (int, float) and value < 0:
        raise SettingsError(f"{where}: {value} must not be negative")
    return hint(value)


_KINDS = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}


def _time(value: Any, where: str) -> datetime:
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            raise SettingsError(f"{where}: {value[:60]!r} is no time; write it as 2024-01-01T00:00:00Z") from None
    elif isinstance(value, date) and not isinstance(value, datetime):
        value = datetime(value.year, value.month, value.day)  # noqa: DTZ001 - UTC is added below
    if not isinstance(value, datetime):
        raise SettingsError(f"{where}: {str(value)[:60]!r} is no time; write it as 2024-01-01T00:00:00Z")
    return value if value.tzinfo is not None else value.replace(tzinfo=UTC)


def _near(name: str, known: Any) -> str:
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""
