"""Broker properties of a start: from a file, flags and settings."""

from __future__ import annotations

import os

from headwater.cli.shell.errors import CliError
from headwater.cli.shell.options import settings
from headwater.services import join_address

PROPERTIES_BYTES_MAX = 1 << 20


def read_properties(path: str, verb: str = "broker") -> dict[str, object]:
    """Read a broker's properties: a flat YAML mapping, or Kafka's own form in a `.properties` file."""
    try:
        if os.path.getsize(path) > PROPERTIES_BYTES_MAX:
            raise CliError(verb, f"{path} is larger than {PROPERTIES_BYTES_MAX} bytes", "name a properties file")
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except OSError as error:
        raise CliError(verb, f"{path} cannot be read: {error.strerror}", "check --config or broker_config") from None
    except UnicodeDecodeError as error:
        raise CliError(verb, f"{path} is not UTF-8 text: {error}", "correct the file") from None
    return _from_properties(path, text, verb) if path.endswith(".properties") else _from_yaml(path, text, verb)


def _from_properties(path: str, text: str, verb: str) -> dict[str, object]:
    from headwater.logtier.config import ConfigError
    from headwater.logtier.config.client_properties import parse_properties

    try:
        return dict(parse_properties(text))
    except ConfigError as error:
        raise CliError(verb, f"{path}: {error}", "correct the file") from None


def _from_yaml(path: str, text: str, verb: str) -> dict[str, object]:
    import yaml

    try:
        document = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{path}:{mark.line + 1}" if mark is not None else path
        raise CliError(verb, f"{where} is not YAML: {getattr(error, 'problem', error)}", "correct the file") from None
    if document is None:
        return {}
    if not isinstance(document, dict) or not all(isinstance(name, str) for name in document):
        raise CliError(verb, f"{path} is not a mapping", "write one `name: value` a line, such as num.partitions: 3")
    for name, value in document.items():
        if isinstance(value, dict) or value is None:
            raise CliError(verb, f"{path}: {name} is not a scalar value", "write one `name: value` a line")
    # Kafka's lists are written with commas.
    return {name: ",".join(map(str, v)) if isinstance(v, list) else v for name, v in document.items()}


def broker_properties(
    file_properties: dict[str, object],
    overrides: dict[str, str],
    data_dir: str | None,
    kafka_port: int | None,
    host: str | None,
) -> dict[str, object]:
    """Merge the broker's properties; precedence: flags, `--set`, the file, the settings.

    >>> broker_properties({"num.partitions": 3}, {}, "data", 0, None)["listeners"]
    'PLAINTEXT://127.0.0.1:0'
    """
    properties = file_properties | overrides
    if data_dir is not None or "log.dirs" not in properties:
        properties["log.dirs"] = data_dir if data_dir is not None else settings().data_dir
    if kafka_port is not None or host is not None or "listeners" not in properties:
        port = kafka_port if kafka_port is not None else settings().kafka_port
        properties["listeners"] = f"PLAINTEXT://{join_address(host if host is not None else settings().host, port)}"
    return properties
