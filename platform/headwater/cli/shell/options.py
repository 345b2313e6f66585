"""Options that several verbs share, and the settings they fall back to."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import click

from headwater.cli.shell.errors import CliError
from headwater.settings import Settings, load_settings

F = TypeVar("F", bound=Callable[..., Any])

_COMMAND_CONFIG = "headwater.command_config"


@functools.cache
def settings() -> Settings:
    """Return the settings of this run, read once."""
    return load_settings()


class BootstrapServersOption(click.Option):
    """`-b, --bootstrap-servers`; `--bootstrap-server`, its name in Kafka's tools, works too and is not in the help."""

    def add_to_parser(self, parser: Any, ctx: click.Context) -> None:
        """Let the parser know both names."""
        super().add_to_parser(parser, ctx)
        parser.add_option(obj=self, opts=["--bootstrap-server"], dest=self.name, action="store", nargs=self.nargs)


def bootstrap_servers_option(help_text: str) -> Callable[[F], F]:
    """Add `-b, --bootstrap-servers`; the function gets None when it is not given (see `servers`)."""
    return click.option(
        "-b", "--bootstrap-servers", cls=BootstrapServersOption, metavar="HOST:PORT[,...]", help=help_text
    )


def client_options(function: F) -> F:
    """Add what a verb needs that talks to brokers: `-b` and `--command-config` (see `client_security`)."""
    servers_option = bootstrap_servers_option(
        "Brokers to connect to.  [default: HEADWATER_BOOTSTRAP_SERVERS, else 127.0.0.1:9092]"
    )
    return servers_option(command_config_option(function))


def command_config_option(function: F) -> F:
    """Add `--command-config`."""
    return click.option(
        "--command-config",
        type=click.Path(),
        metavar="FILE",
        expose_value=False,
        callback=_remember_command_config,
        help="Client properties, one name=value per line: security.protocol, sasl.*, ssl.*.",
    )(function)


def _remember_command_config(context: click.Context, _parameter: click.Parameter, path: str | None) -> None:
    if path is not None:
        context.meta[_COMMAND_CONFIG] = path


def client_security() -> dict[str, str]:
    """Return how clients connect: the properties of `--command-config`, else of the setting of that name."""
    path = command_config()
    return dict(_client_config(path)) if path else {}


def command_config() -> str:
    """Return the path of the file of `--command-config`, else that of the setting of that name; '' for none."""
    context = click.get_current_context(silent=True)
    path = None if context is None else context.meta.get(_COMMAND_CONFIG)
    return str(path) if path is not None else settings().command_config


@functools.cache
def _client_config(path: str) -> dict[str, str]:
    from headwater.logtier.config.client_properties import ClientConfigError, read_client_config

    try:
        return read_client_config(path)
    except ClientConfigError as error:
        raise CliError("", str(error)) from None


def servers(option: str | None) -> str:
    """Return the brokers to talk to: the flag, else the file of `--command-config`, else the settings."""
    if option is not None:
        return option
    return client_security().get("bootstrap.servers", settings().bootstrap_servers)


def output_option(function: F) -> F:
    """Add `-o, --output`."""
    return click.option(
        "-o",
        "--output",
        type=click.Choice(["table", "json", "jsonl", "yaml"]),
        default="table",
        show_default=True,
        help="Output format.",
    )(function)


def compression_option(function: F) -> F:
    """Add `-z, --compression`."""
    return click.option(
        "-z",
        "--compression",
        type=click.Choice(["none", "gzip", "snappy", "lz4", "zstd"]),
        default="none",
        show_default=True,
        help="Compression codec of the record batches.",
    )(function)


def host_option(function: F) -> F:
    """Add `--host`."""
    return click.option("--host", metavar="ADDRESS", help="Address to listen on.  [default: 127.0.0.1]")(function)


def port_option(name: str, help_text: str) -> Callable[[F], F]:
    """Add the option of a port."""
    return click.option(name, type=click.IntRange(0, 65_535), metavar="PORT", help=help_text)


def child_options(function: F) -> F:
    """Add the hidden options by which a supervisor starts a process (see `headwater.child`)."""
    ready = click.option("--ready-fd", type=int, hidden=True)
    parent = click.option("--parent-fd", type=int, hidden=True)
    return ready(parent(function))


class Utf8(click.ParamType[str]):
    """Text of the command line. Names in clusters are UTF-8; librdkafka crashes on some that are not.

    The root gives this type to every parameter without one.
    """

    name = "text"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the text.

        Raises:
            click.BadParameter: it holds bytes that are not UTF-8, which Python passes on as lone surrogates.
        """
        text = str(value)
        try:
            text.encode()
        except UnicodeEncodeError:
            self.fail(f"{text[:60]!r} is not UTF-8 text: check how it is quoted and encoded", param, ctx)
        return text


class Bytes(click.ParamType[str]):
    """Bytes of the command line, whatever their encoding: text that is encoded with "surrogateescape"."""

    name = "text"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:  # noqa: ARG002
        """Return the text as it came."""
        return str(value)


def require_utf8(command: click.Command) -> click.Command:
    """Give `Utf8` to every parameter of a command and of those below it that has no type of its own."""
    for parameter in command.params:
        if parameter.type is click.STRING:
            parameter.type = Utf8()
    if isinstance(command, click.Group):
        for below in command.commands.values():
            require_utf8(below)
    return command


def key_value(text: str, what: str) -> tuple[str, str]:
    """Split `name=value`.

    >>> key_value("retention.ms=1000", "--config")
    ('retention.ms', '1000')
    """
    name, separator, value = text.partition("=")
    if not separator or not name.strip():
        raise click.BadParameter(f"{text[:80]!r} is not of the form name=value", param_hint=what)
    return name.strip(), value


def key_values(texts: tuple[str, ...], what: str) -> dict[str, str]:
    """Split several `name=value`, each name once."""
    values: dict[str, str] = {}
    for text in texts:
        name, value = key_value(text, what)
        if name in values:
            raise click.BadParameter(f"{name!r} is given twice", param_hint=what)
        values[name] = value
    return values
