"""Options shared by several verbs, and the settings that provide their defaults."""

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
    """Return the settings of this process, loaded once."""
    return load_settings()


class BootstrapServersOption(click.Option):
    """`-b, --bootstrap-servers`; the name in Kafka's tools, `--bootstrap-server`, is a hidden alias."""

    def add_to_parser(self, parser: Any, ctx: click.Context) -> None:
        """Register both names with the parser."""
        super().add_to_parser(parser, ctx)
        parser.add_option(obj=self, opts=["--bootstrap-server"], dest=self.name, action="store", nargs=self.nargs)


def bootstrap_servers_option(help_text: str) -> Callable[[F], F]:
    """Add `-b, --bootstrap-servers`; the function receives None if the option is absent (see `servers`)."""
    return click.option(
        "-b", "--bootstrap-servers", cls=BootstrapServersOption, metavar="HOST:PORT[,...]", help=help_text
    )


def client_options(function: F) -> F:
    """Add the options of a verb that connects to brokers: `-b` and `--command-config` (see `client_security`)."""
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
    """Return the connection properties from `--command-config`, else from the setting of the same name."""
    path = command_config()
    return dict(_client_config(path)) if path else {}


def command_config() -> str:
    """Return the path from `--command-config`, else from the setting of the same name; '' if neither is present."""
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
    """Return the bootstrap servers: the flag, else the file of `--command-config`, else the settings."""
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
    """Add a port option."""
    return click.option(name, type=click.IntRange(0, 65_535), metavar="PORT", help=help_text)


def child_options(function: F) -> F:
    """Add the hidden options with which a supervisor starts a process (see `headwater.child`)."""
    ready = click.option("--ready-fd", type=int, hidden=True)
    parent = click.option("--parent-fd", type=int, hidden=True)
    return ready(parent(function))


class Utf8(click.ParamType[str]):
    """Text of the command line. Names in clusters are UTF-8; librdkafka crashes on some invalid ones.

    The root assigns this type to every parameter without a type of its own.
    """

    name = "text"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the text.

        Raises:
            click.BadParameter: the text contains bytes that are not UTF-8, which Python represents as lone surrogates.
        """
        text = str(value)
        try:
            text.encode()
        except UnicodeEncodeError:
            self.fail(f"{text[:60]!r} is not UTF-8 text: check how it is quoted and encoded", param, ctx)
        return text


class Bytes(click.ParamType[str]):
    """Bytes of the command line in any encoding, as text encoded with "surrogateescape"."""

    name = "text"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:  # noqa: ARG002
        """Return the text unchanged."""
        return str(value)


def require_utf8(command: click.Command) -> click.Command:
    """Assign `Utf8` to every parameter of a command and its subcommands that has no type of its own."""
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
    """Split several `name=value` texts; names must be distinct."""
    values: dict[str, str] = {}
    for text in texts:
        name, value = key_value(text, what)
        if name in values:
            raise click.BadParameter(f"{name!r} is given twice", param_hint=what)
        values[name] = value
    return values
