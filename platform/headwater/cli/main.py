"""The root of the command line: the table of verbs, and the report of every failure.

The table contains the verbs' help texts, so `headwater --help` imports no verb (it must answer within 300 ms, and
pyspark alone takes longer). The commands are click's: typer needs pydantic as soon as it parses a value, 0.2 s more for
each verb, and `headwater up` starts two of them within the 1.5 s in which the Kafka port must answer.
"""

from __future__ import annotations

import contextlib
import difflib
import errno
import importlib
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import click

from headwater import __version__
from headwater.cli.shell.errors import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_USER, CliError
from headwater.cli.shell.streams import STANDARD_OUTPUT, abandon_output, secure_streams
from headwater.cli.shell.termination import EXIT_TERMINATED, Terminated

PROGRAM: Final = "headwater"
DEBUG_VARIABLE: Final = "HEADWATER_DEBUG"


@dataclass(frozen=True, slots=True)
class Verb:
    """A verb's location (`module` and the name of its command) and its help text in the root."""

    module: str
    attribute: str
    help: str


VERBS: Final[Mapping[str, Verb]] = {
    "up": Verb("headwater.cli.verbs.up", "up", "Start a node (broker and REST API) and run it until Ctrl-C."),
    "demo": Verb(
        "headwater.cli.demo.command", "demo", "Run a pipeline over 336,776 real flights, from a topic to Delta and SQL."
    ),
    "topic": Verb("headwater.cli.verbs.topic", "app", "Create, list, describe, alter and delete topics."),
    "produce": Verb("headwater.cli.verbs.produce", "produce", "Write lines from standard input or a file to a topic."),
    "consume": Verb("headwater.cli.verbs.consume", "consume", "Print the messages of a topic."),
    "ship": Verb("headwater.cli.verbs.ship", "ship", "Follow log files and write their lines to a topic."),
    "cluster": Verb("headwater.cli.verbs.cluster", "app", "Show brokers and the state of their replicas."),
    "user": Verb("headwater.cli.verbs.user", "app", "Set, list and delete SCRAM credentials of users."),
    "acls": Verb("headwater.cli.verbs.acls", "app", "List, add and remove access control lists (ACLs)."),
    "quotas": Verb("headwater.cli.verbs.quotas", "app", "List and set client quotas."),
    "pipeline": Verb("headwater.cli.pipeline.group", "app", "Validate and run pipelines written in YAML."),
    "dead-letters": Verb(
        "headwater.cli.verbs.dead_letters", "app", "Show records that pipelines could not process, and write them back."
    ),
    "transactions": Verb(
        "headwater.cli.verbs.transactions", "app", "List and describe transactions; find and abort hanging ones."
    ),
    "sql": Verb("headwater.cli.verbs.sql", "sql", "Run Spark SQL over topics and Delta tables."),
    "sql-service": Verb("headwater.cli.verbs.sql_service", "sql_service", "Run queries for the REST API."),
    "load": Verb("headwater.cli.loads.command", "load", "Load ranges of topics into files or Delta tables, once."),
    "archive": Verb(
        "headwater.cli.archive.group", "app", "Keep topics in Delta tables, each record once, as fresh as declared."
    ),
    "publish": Verb(
        "headwater.cli.verbs.publish", "publish", "Write files or a Delta table's rows to a topic, each row once."
    ),
    "airflow": Verb("headwater.cli.verbs.airflow", "airflow", "Write the DAGs for Apache Airflow to a folder."),
    "broker": Verb("headwater.cli.verbs.broker", "broker", "Run a broker without the REST API."),
    "zookeeper": Verb(
        "headwater.cli.verbs.zookeeper", "zookeeper", "Run a ZooKeeper server for brokers of this machine."
    ),
    "api": Verb("headwater.cli.verbs.api", "api", "Run the REST API without a broker."),
    "doctor": Verb("headwater.cli.verbs.doctor", "doctor", "Check Python, Java, packages, jars, ports and disk."),
    "version": Verb("headwater.cli.verbs.version", "version", "Print the version."),
}
"""The verbs in the order of `headwater --help`."""


def load_verb(name: str) -> click.Command:
    """Import a verb and return its command."""
    verb = VERBS[name]
    from headwater.cli.shell.options import require_utf8

    command = getattr(importlib.import_module(verb.module), verb.attribute)
    assert isinstance(command, click.Command)
    return require_utf8(command)


class RootGroup(click.Group):
    """A group that imports a verb only to run it."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """Return the verbs in the table's order."""
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Import one verb."""
        return load_verb(cmd_name) if cmd_name in VERBS else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Write the verbs' help from the table."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, verb.help) for name, verb in VERBS.items()])

    def invoke(self, ctx: click.Context) -> object:
        """Run the verb. Ctrl-C and SIGTERM end it silently; click would print an empty line."""
        try:
            return super().invoke(ctx)
        except Terminated:
            raise click.exceptions.Exit(EXIT_TERMINATED) from None
        except KeyboardInterrupt:
            raise click.exceptions.Exit(EXIT_INTERRUPTED) from None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the verb, or suggest the verb that was probably meant."""
        if args and args[0] not in VERBS and not args[0].startswith("-"):
            close = difflib.get_close_matches(args[0], VERBS, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"`{PROGRAM} --help` lists the commands"
            raise CliError("", f"there is no command {args[0][:60]!r}", hint)
        return super().resolve_command(ctx, args)


@click.group(
    cls=RootGroup,
    name=PROGRAM,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="`headwater COMMAND --help` explains a command.",
)
@click.version_option(__version__, message=f"{PROGRAM} %(version)s", help="Print the version and exit.")
def root() -> None:
    """A stream-processing platform around Apache Spark with its own log tier that speaks the Kafka protocol."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code; every failure is reported as one line on stderr."""
    secure_streams()
    if sys.argv[0].endswith("__main__.py"):
        sys.argv[0] = PROGRAM
    try:
        result = root.main(
            list(sys.argv[1:] if arguments is None else arguments), prog_name=PROGRAM, standalone_mode=False
        )
        sys.stdout.flush()
        return result if isinstance(result, int) else 0
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else EXIT_FAILED
    except (KeyboardInterrupt, click.exceptions.Abort):
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader of our output has gone (`| head`): nothing is left to say, not even at interpreter exit.
        abandon_output()
        return EXIT_FAILED
    except click.exceptions.NoArgsIsHelpError as error:
        sys.stderr.write(error.format_message() + "\n")
        return EXIT_USER
    except Exception as error:
        if os.environ.get(DEBUG_VARIABLE) == "1":
            raise
        if isinstance(error, OSError) and error.filename == STANDARD_OUTPUT:
            abandon_output()
        line, exit_code = explain(error)
        _say(line)
        return exit_code


def explain(error: Exception) -> tuple[str, int]:
    """Convert a failure to its line and exit code. Imports nothing: a raised error's class is already imported."""
    if isinstance(error, CliError):
        return str(error), error.exit_code
    if isinstance(error, click.ClickException):
        return _usage(error), EXIT_USER
    kinds = {cls.__name__: cls.__module__ for cls in type(error).__mro__}
    if kinds.get("TopicAdminError") == "headwater.api.topic_model":
        code = error.code  # type: ignore[attr-defined]
        return f"{error}{_advice(code.value)}", EXIT_USER if code.is_users else EXIT_FAILED
    if kinds.get("SettingsError") == "headwater.settings" or kinds.get("BootstrapServersError"):
        return str(error), EXIT_USER
    if kinds.get("ConfigError") == "headwater.logtier.config.definition":
        return str(error), EXIT_USER
    if kinds.get("PipelineError") == "headwater.pipelines.errors":
        return str(error), EXIT_USER
    if (
        kinds.get("PipelineFailed") == "headwater.pipelines.errors"
        or kinds.get("PipelineBusy") == "headwater.pipelines.errors"
    ):
        return str(error), EXIT_FAILED
    if kinds.get("KafkaException") == "cimpl" and error.args[0].name() == "_INVALID_ARG":
        # librdkafka does not make a client of such properties; those that the user gives are in that file.
        return f"{error.args[0].str()}; correct the file of --command-config", EXIT_USER
    if isinstance(error, OSError) and error.filename == STANDARD_OUTPUT:
        what = "is closed" if error.errno == errno.EBADF else f"cannot be written: {error.strerror}"
        return f"{STANDARD_OUTPUT} {what}; the output is incomplete", EXIT_FAILED
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}; check the path and its permissions", EXIT_FAILED
    reason = " ".join(str(error).split())[:500] or "no reason given"
    return (
        f"unexpected {type(error).__name__}: {reason}; set {DEBUG_VARIABLE}=1 to see where it happened",
        EXIT_FAILED,
    )


def _advice(code: str) -> str:
    return {
        "UNAVAILABLE": "; start one with `headwater up`, or name another with --bootstrap-servers",
        "TIMED_OUT": "; see the broker's log, or raise HEADWATER_REQUEST_TIMEOUT_MS",
        "UNKNOWN_TOPIC": "; `headwater topic list` shows those that exist",
    }.get(code, "")


def _usage(error: Any) -> str:
    message = " ".join(error.format_message().split()).rstrip(".")
    return f"{message}; `{_command_path(error)} --help` shows the options"


def _command_path(error: Any) -> str:
    context = getattr(error, "ctx", None)
    return context.command_path if context is not None else PROGRAM


def _say(line: str) -> None:
    with contextlib.suppress(OSError):
        # A pipeline's problems come one a line; each is a line of its own with the program's name.
        for part in line.splitlines() or [""]:
            sys.stderr.write(f"{PROGRAM}: {part}\n")
        sys.stderr.flush()
